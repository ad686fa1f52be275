"""Reads a sweep's YAML and expands it to checked cells: grids, overrides, plans.

Imports gnnhpc alone.
"""
