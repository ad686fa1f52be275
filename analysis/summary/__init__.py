"""Computes summary.csv: configurations, baselines, ideal step times, speedups.

Imports loading and stats.
"""
