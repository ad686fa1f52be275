"""What Slurm is asked for and answers: site settings, arrays, scripts, the queue.

Imports jobs.spec.
"""
