"""PyG's and DGL's own loaders as sources of sampled mini-batches."""
