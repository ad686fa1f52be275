"""`schema sweep|site`: the JSON Schema by which editors complete and check what users write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.cli import main

FOLDER = Path(__file__).parents[2] / "jobs/sweeps"
HEADER = "# yaml-language-server: $schema="


def test_every_shipped_sweep_names_the_schema() -> None:
    for path in FOLDER.rglob("*.yaml"):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith(HEADER)
        assert (path.parent / first.removeprefix(HEADER)).resolve() == FOLDER / "sweep.schema.json"


def test_schemas_have_the_docstrings_of_the_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """python -m jobs schema sweep > jobs/sweeps/sweep.schema.json"""
    assert main(["schema", "sweep"]) == 0
    printed = capsys.readouterr().out
    assert printed == (FOLDER / "sweep.schema.json").read_text(encoding="utf-8")
    models = json.loads(printed)["$defs"]["model"]["anyOf"]
    gat = next(one for one in models if "heads" in one.get("properties", {}))
    hidden = "Channels of a head in every layer but the last."
    assert gat["properties"]["hidden"]["description"] == hidden
    assert main(["schema", "site"]) == 0
    assert "GPUs a node, as --gres takes them" in capsys.readouterr().out
    assert main(["schema", "sweep", "--table"]) == 0
    printed = capsys.readouterr().out
    assert all(key in printed for key in ("microbatches", "lr_schedule", "fanouts", "momentum"))
