"""The table of every sweep and site key: each has a type and a meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli.commands import main
from jobs.slurm.site import Site
from jobs.sweep.settings_table import SettingRow, setting_rows, sweep_rows

TABLES = dict(sweep_rows())


@pytest.mark.parametrize("rows", [*TABLES.values(), list(setting_rows(Site))])
def test_every_key_has_a_meaning_and_a_type(rows: list[SettingRow]) -> None:
    assert rows
    for row in rows:
        assert row.meaning.endswith("."), row
        assert row.kind, row


def test_the_command_prints_every_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["schema", "sweep", "--table"]) == 0
    printed = capsys.readouterr().out
    assert all(row.key in printed for rows in TABLES.values() for row in rows)
