"""The command `gnnhpc`, and what its help does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import analysis.cli
import gnnhpc.cli
import jobs.cli
from gnnhpc.console import COMMANDS, main

HEAVY = {"torch", "pandas", "numpy", "matplotlib", "yaml", "jinja2", "jobs.sweep"}
APPS = {"jobs": jobs.cli.app, "gnnhpc": gnnhpc.cli.app, "analysis": analysis.cli.app}
HELP = """\
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from gnnhpc.console import main
main(["--help"])
"""


@pytest.mark.parametrize("package", APPS)
def test_every_command_of_a_package_is_there(package: str) -> None:
    group = get_command(APPS[package])
    assert isinstance(group, TyperGroup)
    assert {name for name, (home, _) in COMMANDS.items() if home == package} == set(group.commands)


def test_help_lists_all_commands_under_their_headings_and_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    place = 0
    for heading in dict.fromkeys(heading for _, heading in COMMANDS.values()):
        place = done.stdout.index(f" {heading} ", place)
        for name in (name for name, (_, under) in COMMANDS.items() if under == heading):
            place = done.stdout.index(f"│ {name} ", place)
    assert not set(done.stderr.split()) & HEAVY


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("statsu", "no such command 'statsu'. Did you mean 'status'?"),
        ("submit --frobnicate", "no such option: --frobnicate"),
        ("status", "missing argument 'RUN'"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    found = capsys.readouterr().err
    assert found == f"error: command line: found {line}; allowed: what --help says\n"
