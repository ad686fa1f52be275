"""What the record audit checks: records as read, times, noise, drift, processors."""
