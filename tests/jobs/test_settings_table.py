"""The table of every sweep and site key: each has a meaning, and each example is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from jobs.cli.commands import main
from jobs.slurm.site import Site, parse_site
from jobs.sweep.settings_table import SettingRow, setting_rows, sweep_rows
from jobs.sweep.sweep import read_sweep

GRID = {"models": ["gat"], "data": ["cora"], "layouts": ["seq"]}
TABLES = dict(sweep_rows())


def example(row: SettingRow) -> dict[str, object]:
    parsed: dict[str, object] = yaml.safe_load(row.example)
    return parsed


@pytest.mark.parametrize("rows", [*TABLES.values(), list(setting_rows(Site))])
def test_every_key_has_a_meaning_and_a_type(rows: list[SettingRow]) -> None:
    assert rows
    for row in rows:
        assert row.meaning.endswith("."), row
        assert row.kind, row


def test_every_example_of_a_sweep_is_accepted() -> None:
    for row in TABLES["A sweep"]:
        read_sweep({"name": "x", "grids": [GRID], **example(row)}, "example")
    for row in TABLES["`defaults` and each grid"]:
        read_sweep({"name": "x", "grids": [GRID | example(row)]}, row.key)
    for key in ("optimizer", "sampling", "task"):
        for row in TABLES[f"`{key}`"]:
            known = {"optimizer": {}, "sampling": {"fanouts": [5]}, "task": {"name": "links"}}[key]
            read_sweep({"name": "x", "grids": [GRID | {key: known | example(row)}]}, row.key)


def test_every_example_of_a_site_is_accepted() -> None:
    for row in setting_rows(Site):
        parse_site(example(row), "example", row.key)


def test_the_command_prints_every_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["schema", "sweep", "--table"]) == 0
    printed = capsys.readouterr().out
    assert all(row.key in printed for rows in TABLES.values() for row in rows)
