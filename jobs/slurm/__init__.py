"""Slurm: sites, job arrays and their scripts, sbatch, the queue, the accounting."""
