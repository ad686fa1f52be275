"""`schema sweep|site`: the JSON Schema by which editors complete and check what users write."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.slurm import site_files
from jobs.sweep import sweep_schema as schemas

sweep_schema = functools.cache(schemas.sweep_schema)
site_schema = functools.cache(site_files.site_schema)
FOLDER = Path(__file__).parents[2] / "jobs/sweeps"
SHIPPED = sorted(FOLDER.rglob("*.yaml"))
HEADER = "# yaml-language-server: $schema="


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_name_their_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    assert first.startswith(HEADER)
    assert (path.parent / first.removeprefix(HEADER)).resolve() == FOLDER / "sweep.schema.json"


def test_the_shipped_schema_is_of_these_models() -> None:
    """python -m jobs schema sweep > jobs/sweeps/sweep.schema.json"""
    shipped = json.loads((FOLDER / "sweep.schema.json").read_text(encoding="utf-8"))
    assert shipped == sweep_schema()


def test_descriptions_are_the_docstrings_of_the_fields() -> None:
    entries = sweep_schema()["$defs"]["model"]["anyOf"]
    gat = next(one for one in entries if "heads" in one.get("properties", {}))
    hidden = "Channels of a head in every layer but the last."
    assert gat["properties"]["hidden"]["description"] == hidden
    assert "--gres" in site_schema()["$defs"]["site"]["properties"]["gres"]["description"]


@pytest.mark.parametrize("what", ["sweep", "site"])
def test_the_command_prints_json(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", what]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"sweep": sweep_schema, "site": site_schema}[what]()
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
