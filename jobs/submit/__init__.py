"""What starts and stops cells: submissions, run folders, reruns, Slurm and this machine."""
