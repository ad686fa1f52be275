"""A real Slurm on one machine, and the tests that need it."""
