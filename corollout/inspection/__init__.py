"""The rollouts and the credit behind one gradient estimate."""
