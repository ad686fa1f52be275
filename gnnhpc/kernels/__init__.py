"""Kernels of the layers: in C++, compiled on first use, in Triton for GPUs, in plain torch else.

Files here choose the code and have its gradients. It imports graphs.
"""
