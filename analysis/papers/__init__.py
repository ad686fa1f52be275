"""The published tables, ours beside them, and verdicts on both.

Imports records, render and stats.
"""
