"""Layouts, schedules, settings, stored files and errors; free of torch."""

VERSION = "0.1.0"
"""The version of the three packages, equal to that of pyproject.toml and CITATION.cff."""
