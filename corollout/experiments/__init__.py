"""Whole experiments: a task, a training and a run directory put together from settings."""
