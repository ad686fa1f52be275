"""A process among others: environment, mesh, rendezvous, signals, watchdog, requeue.

Imports core.
"""
