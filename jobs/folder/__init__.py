"""A run folder's files: made and extended, submissions, attempts, logs.

Imports jobs.cluster and jobs.spec.
"""
