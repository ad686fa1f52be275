"""The commands of `python -m jobs`, in the order of their help, and what they print."""

from jobs.cli.typer_app import app, main

from jobs.cli import submit_commands, run_commands, site_commands  # isort: skip

__all__ = ["app", "main", "run_commands", "site_commands", "submit_commands"]
