"""Kernels of the layers: C++ that is compiled on first use, Triton for GPUs, and plain torch.

The modules of this folder choose the code and define its gradients. It imports graphs.
"""
