"""What each rank did in one step, beside its schedule; Chrome traces.

Imports records.
"""
