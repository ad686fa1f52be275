"""One process among the ranks of a cell: environment, mesh, store, signals, watchdog.

Imports kernels and core.
"""
