"""Looking at single examples: the credit behind a gradient estimate, and generated sequences."""
