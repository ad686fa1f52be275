"""Published tables with our numbers beside them, and verdicts on both.

Imports loading, render and stats.
"""
