"""Convolutions of graphs besides GAT: their settings, and each in our form, PyG's and DGL's."""
