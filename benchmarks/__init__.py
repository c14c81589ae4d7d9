"""Side-by-side measurements: ``python -m benchmarks`` prints a table and writes a JSON file for each of them."""
