"""Statistics of step times: intervals, pairs of runs, warm-up, noise.

Pure functions of arrays and frames. Imports nothing of analysis.
"""
