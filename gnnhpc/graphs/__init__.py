"""A graph in memory and how it is cut: structures, chunks, partitions, sparse rows.

Imports core.
"""
