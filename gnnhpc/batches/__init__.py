"""What a step consumes: mini-batches of images, chunks of a graph.

Imports data, graphs, models, spec and below.
"""
