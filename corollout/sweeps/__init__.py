"""Sweeps: methods, learning rates and seeds as jobs in worker processes, restartable, with a report."""
