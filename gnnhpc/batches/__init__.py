"""What a step consumes: mini-batches of images, chunks of a graph, sampled parts, graph sets.

Imports distributed, experiment, records, models, data, kernels and graphs.
"""
