"""From a sweep's YAML to checked cells: grids, overrides, plans.

Imports gnnhpc alone.
"""
