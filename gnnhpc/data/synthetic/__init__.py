"""Synthetic data with structure that can be learned: the same for the same settings."""
