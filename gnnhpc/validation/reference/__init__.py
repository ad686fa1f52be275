"""Independent second implementations: readers of data, the order of samples, models and steps."""
