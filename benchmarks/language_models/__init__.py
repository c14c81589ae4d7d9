"""Data-to-text on the E2E data: the same small language model fine-tuned by TRL's trainers and by ours, side by side.

``python -m benchmarks.language_models --help`` lists the steps.
"""
