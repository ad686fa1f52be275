"""One process among the ranks of a cell: environment, mesh, rendezvous, signals, watchdog.

Imports core.
"""
