"""Writes and reads the files of a run folder: submission records, attempts, logs.

Imports jobs.cluster and jobs.spec.
"""
