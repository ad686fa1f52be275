"""What commands print.

Imports jobs.actions and below.
"""
