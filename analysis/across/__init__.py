"""Compares cells with one another: siblings must learn the same, and only like is joined.

Pure functions of what cells are and recorded; imports stats.
"""
