"""Slurm: site settings, arrays and their scripts, submitting, looking at the queue.

Imports jobs.spec.
"""
