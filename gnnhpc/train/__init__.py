"""Trains one cell on one rank: setup, the training loop, checkpoints, progress.

Imports engines, batches, records and below.
"""
