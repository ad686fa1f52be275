"""Layers as torch modules: fused ones, PyG's and DGL's, and what they share."""
