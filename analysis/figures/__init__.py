"""Draws the figures: a registry of all, a file for each family, one style."""
