"""What is learnt and how it is measured: loss, tally, metrics.

Imports batches and below.
"""
