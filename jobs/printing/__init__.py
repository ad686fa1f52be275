"""Formats what the commands print: plans, submissions, status.

Imports jobs.actions and below.
"""
