"""Kernels for GPUs: `*programs.py` are Triton's, `triton_*.py` launch them.

A program computes one row, or some, and adds its edges in their order: without atomic additions,
and so to the same bits each time. Torch for GPUs brings Triton; without it plain torch computes.
"""
