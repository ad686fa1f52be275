"""Computes summary.csv: configurations, baselines, ideal step times, speedups.

Imports records and stats.
"""
