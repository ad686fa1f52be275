"""Loads a run folder's records into data frames.

Imports analysis.stats.
"""
