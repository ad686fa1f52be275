"""The command `gnnhpc`: all commands of jobs, gnnhpc and analysis under one name.

Each is the command of `python -m PACKAGE`; its package is imported when the command is used.
gnnhpc imports neither jobs nor analysis, so this table names them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gnnhpc.core.cli_options import make_app, run_app
from gnnhpc.core.errors import report_errors
from gnnhpc.records.code_snapshot import check_running_code

_BY_HEADING = {
    "Submit sweeps, show and rerun them": (
        "jobs",
        "submit status list rerun cancel logs clean site schema",
    ),
    "Run one cell": ("gnnhpc", "run verify"),
    "Get data sets": ("gnnhpc", "data"),
    "Report": ("analysis", "report compare check import-csv"),
}
COMMANDS = {
    name: (package, heading)
    for heading, (package, names) in _BY_HEADING.items()
    for name in names.split()
}
"""Command: the package whose `cli.app` has it, and its heading in the help."""

Command = TyperCommand | TyperGroup


class Commands(TyperGroup):
    """A group that lists all commands, and imports a command when it is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS, _NOT_LOADED)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.commands.get(cmd_name) is _NOT_LOADED:
            self.commands[cmd_name] = load(cmd_name)
        return super().get_command(ctx, cmd_name)


_NOT_LOADED = TyperCommand(None)

app = make_app(
    "Measure graph neural networks on a Slurm cluster.\n\n"
    "A sweep becomes a run folder and one job array a model and layout; its records become tables "
    "and figures. Exit status: 0 done, 1 something ran and failed, 2 the input was wrong.",
    cls=Commands,
)


def load(name: str) -> Command:
    """A command of COMMANDS, under its heading."""
    package, heading = COMMANDS[name]
    group = get_command(import_module(f"{package}.cli").app)
    assert isinstance(group, TyperGroup), f"{package}.cli.app has one command only"
    command = group.commands[name]
    assert isinstance(command, Command)
    command.rich_help_panel = heading
    return command


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user's mistakes are one line on stderr and status 2."""
    check_running_code()
    return run_app(app, "gnnhpc", arguments)
