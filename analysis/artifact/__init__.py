"""What a reviewer of an artifact asks of a run, a line each.

Imports loading and stats.
"""
