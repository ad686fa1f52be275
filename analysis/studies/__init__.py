"""Published tables with our numbers beside them, and verdicts on both.

Imports summary, loading, render and stats.
"""
