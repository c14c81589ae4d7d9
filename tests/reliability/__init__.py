"""The reliability proof: ``python -m tests.reliability``. Each module with a ``SUITE`` is one of its suites."""
