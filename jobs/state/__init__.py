"""The state of each cell, from its folder, Slurm's queue and the local supervisor.

Imports jobs.folder and below.
"""
