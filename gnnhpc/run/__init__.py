"""Runs one cell on one rank, from its environment to its result.

Imports everything below.
"""
