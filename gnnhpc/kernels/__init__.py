"""C++ compiled on first use where there is a compiler, and what runs without one.

Imports core and graphs.
"""

from gnnhpc.kernels.build import kernel_status, load_kernel

__all__ = ["kernel_status", "load_kernel"]
