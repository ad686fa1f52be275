"""What starts and stops the jobs of a run: submit, rerun, cancel, and cells on this machine."""
