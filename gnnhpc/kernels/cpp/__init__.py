"""C++ sources of the kernels, and calls of those that sum over neighbours."""
