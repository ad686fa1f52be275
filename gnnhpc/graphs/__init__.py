"""Graphs in memory: chunks, blocks, unions, features, METIS, link splits. Imports core alone."""
