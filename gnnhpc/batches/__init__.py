"""What a step consumes: mini-batches of images, chunks of a graph.

Imports ranks, records, spec and below.
"""
