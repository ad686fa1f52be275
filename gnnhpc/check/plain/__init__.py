"""A second reading of the data, written apart from the one it judges: slow, short, few rows.

Imports data and below, and nothing of `gnnhpc.batches` or `gnnhpc.graphs`.
"""
