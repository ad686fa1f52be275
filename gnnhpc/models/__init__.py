"""Models as ordered lists of layers: their settings here, the torch modules of layers in `layers`.

It imports core, graphs and kernels.
"""
