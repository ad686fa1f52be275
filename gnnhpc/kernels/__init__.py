"""Kernels in C++, compiled on first use, and in plain torch where there is no compiler.

Imports graphs.
"""

from gnnhpc.kernels.build import kernel_status, kernel_traits, load_kernel

__all__ = ["kernel_status", "kernel_traits", "load_kernel"]
