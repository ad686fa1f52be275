"""Statistics of step times: intervals, warm-up, noise.

Pure functions of arrays and frames. Imports nothing of analysis.
"""
