"""The command `gnnhpc`, and what each of the four commands refuses to import."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import analysis.cli
import gnnhpc.cli
import jobs.cli
from gnnhpc.console import COMMANDS, main
from tests.tools.console import Console

HEAVY = {"torch", "pandas", "numpy", "matplotlib", "yaml", "jinja2", "jobs.sweep"}
APPS = {"jobs": jobs.cli.app, "gnnhpc": gnnhpc.cli.app, "analysis": analysis.cli.app}


@pytest.fixture
def console(tmp_path: Path) -> Console:
    """`gnnhpc` in an empty folder."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    return Console.of_checkout(tmp_path / "bin", place)


@pytest.mark.parametrize("package", APPS)
def test_every_command_of_a_package_is_there(package: str) -> None:
    group = get_command(APPS[package])
    assert isinstance(group, TyperGroup)
    assert {name for name, (home, _) in COMMANDS.items() if home == package} == set(group.commands)


def test_help_lists_all_commands_under_their_headings_and_loads_nothing_heavy(
    console: Console,
) -> None:
    said, modules = console.loaded("--help", TERMINAL_WIDTH="100")
    place = 0
    for heading in dict.fromkeys(heading for _, heading in COMMANDS.values()):
        place = said.index(f" {heading} ", place)
        for name in (name for name, (_, under) in COMMANDS.items() if under == heading):
            place = said.index(f"│ {name} ", place)
    assert not modules & HEAVY


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("statsu", "no such command 'statsu'. Did you mean 'status'?"),
        ("--frobnicate", "no such option: --frobnicate"),
        ("submit --frobnicate", "no such option: --frobnicate"),
        ("status", "missing argument 'RUN'"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    said = capsys.readouterr().err
    assert said == f"error: command line: found {line}; allowed: what --help says\n"


def plant(place: Path, name: str) -> Path:
    """A file of somebody's own, that leaves a mark where it runs."""
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"open({str(place / 'it-ran')!r}, 'w')")
    return file


def test_gnnhpc_does_not_look_into_the_folder_it_stands_in(console: Console) -> None:
    for name in ("analysis.py", "jobs.py", "gnnhpc.py"):
        plant(console.cwd, name)
    done = console.run("gnnhpc", "submit", "quickstart", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not (console.cwd / "it-ran").exists()
