"""Links of a graph: which are trained on, which are scored, and negative pairs.

Imports kernels and below.
"""
