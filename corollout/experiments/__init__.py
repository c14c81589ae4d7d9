"""The experiments, one file each: methods, scales, the paper's numbers, tables and figures."""
