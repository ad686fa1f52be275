"""Models as ordered lists of layers: this folder has their settings, `layers` their torch modules.

It imports core, graphs and kernels.
"""
