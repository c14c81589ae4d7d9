"""Export: a captioner as a folder that needs nothing but NumPy, and the runtime that goes with it."""

from corollout.export.writing import RUNTIME, Export, export_run, write_export

__all__ = ["RUNTIME", "Export", "export_run", "write_export"]
