"""A graph in memory and how it is cut: chunks, blocks, partitions, features, sparse rows.

Imports no other room.
"""
