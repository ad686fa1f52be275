"""What a run folder says: cells, attempts, submissions, their state, logs and cost."""
