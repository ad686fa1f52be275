"""What became of each cell, from its folder, the queue and the local supervisor.

Imports jobs.folder and below.
"""
