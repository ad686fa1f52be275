"""The steps that engine parity compares: the slice of the data, their capture and comparison."""
