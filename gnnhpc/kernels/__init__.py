"""Kernels in C++, compiled on first use; in Triton for GPUs; in plain torch where neither is.

Imports graphs.
"""

from gnnhpc.kernels.build import kernel_status, kernel_traits, load_kernel

__all__ = ["kernel_status", "kernel_traits", "load_kernel"]
