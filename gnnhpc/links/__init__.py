"""Links of a graph: which are learnt, which are judged, and pairs of nodes that are none.

Imports kernels and below.
"""
