"""Training: the loop and what listens to it."""
