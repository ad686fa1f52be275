"""Models as ordered lists of layers: one folder a model, their registry, and common layers.

Imports core, graphs and kernels.
"""
