"""From a run folder's records to tidy frames.

Imports analysis.stats.
"""
