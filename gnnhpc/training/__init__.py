"""Trains one cell on one rank: the set-up, the loop, checkpoints.

Imports engines, tasks, batches, records and below.
"""
