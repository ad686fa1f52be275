"""From an experiment to steps taken: assembly, the loop, checkpoints, progress.

Imports engines, batches, records and below.
"""
