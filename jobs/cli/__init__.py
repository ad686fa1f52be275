"""The commands of `python -m jobs`, and what they print."""

from jobs.cli.commands import app, main

__all__ = ["app", "main"]
