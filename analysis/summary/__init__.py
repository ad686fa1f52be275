"""Computes summary.csv: configurations, baselines, ideal step times, speedups.

Imports load and statistics.
"""
