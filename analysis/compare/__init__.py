"""Compares two runs: step times, layer groups, losses, and what the two differ in.

Imports summary, loading, render, across and stats.
"""
