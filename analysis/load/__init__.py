"""Loads run folders as tidy data frames, and decides which cells are valid and comparable.

Imports analysis.statistics.
"""
