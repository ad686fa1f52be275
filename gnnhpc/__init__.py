"""Layouts, models, data, engines and the worker of the gnnhpc suite.

The modules imported here are free of torch, so login nodes can use them at once.
"""

from gnnhpc.errors import GnnhpcError, InputError
from gnnhpc.layout import Layout
from gnnhpc.manifest import Cell, read_manifest
from gnnhpc.paths import RunPaths
from gnnhpc.spec import Experiment

__all__ = ["Cell", "Experiment", "GnnhpcError", "InputError", "Layout", "RunPaths", "read_manifest"]
__version__ = "0.1.0"
