"""Models as ordered lists of layers, one folder a model, and what models share.

Imports core, graphs and kernels.
"""
