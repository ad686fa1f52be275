"""The commands of `python -m jobs`; each imports what it needs when it is called.

Imports every other room of jobs.
"""
