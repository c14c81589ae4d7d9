"""Tasks: a data set, a reward and a policy that fits them. A task knows nothing of training."""
