"""summary.csv: rows, baselines, ideal step times, speedups.

Imports records and stats.
"""
