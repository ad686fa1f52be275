"""Published tables with our numbers beside them, and verdicts on both.

Imports records, render and stats.
"""
