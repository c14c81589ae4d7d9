"""Sweeps: models, methods, learning rates and seeds as jobs in worker processes, with a report."""
