"""`schema sweep|site`: what users write fits, what is refused does not, and both are told of."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnnhpc.core.errors import InputError
from jobs.cli import main
from jobs.slurm import site_files
from jobs.slurm.site_files import read_site_file
from jobs.sweep import sweep_schema as schemas
from jobs.sweep.plan import plan
from tests.tools.json_schema import mistakes

sweep_schema = functools.cache(schemas.sweep_schema)
site_schema = functools.cache(site_files.site_schema)
FOLDER = Path(__file__).parents[2] / "jobs/sweeps"
SHIPPED = sorted(FOLDER.rglob("*.yaml"))
HEADER = "# yaml-language-server: $schema="

GRID: dict[str, Any] = {"models": "gat", "data": "synthetic-citation", "layouts": "seq"}
SAMPLED = GRID | {"batch_size": 8, "sampling": {"fanouts": [10, 5], "workers": 0}}
VIG = {"models": "vig", "data": [{"name": "synthetic-cifar10", "train": 100}], "batch_size": 10}

GOOD = [
    GRID,
    GRID | {"models": ["gat", {"name": "gat", "layers": 3, "dropout": 0}], "seeds": [0, 1]},
    GRID | {"balance": "profile", "schedules": ["gpipe", "1f1b"], "microbatches": [2, 4]},
    SAMPLED | {"batch_size": [8, 16]},
    SAMPLED | {"sampling": [None, {"fanouts": [3, 3], "sampler": "pyg", "replace": True}]},
    GRID | {"optimizer": {"lr": 1}, "spans": True, "save_every": None, "repeats": 2},
]
BAD = [
    GRID | {"modles": "gat"},
    GRID | {"models": [{"name": "gat", "heds": 3}]},
    GRID | {"data": [{"name": "file"}]},
    GRID | {"layouts": ["pp0"]},
    GRID | {"microbatches": 0},
    GRID | {"seeds": [-1]},
    GRID | {"repeats": 0},
    GRID | {"train_steps": 2.5},
    SAMPLED | {"sampling": "dgl"},
    SAMPLED | {"sampling": {"fanouts": [10, 0]}},
    GRID | {"optimizer": {"lr": 0}},
    GRID | {"optimizer": {"momentun": 0.9}},
    GRID | {"repeat": 1},
]
SITES = [
    ({"default": "a", "sites": {"a": {"partition": "p", "time": 30, "modules": ["gcc/12"]}}}, True),
    ({"sites": {"a": None, "b": {"slurm": {"reservation": "x", "no-kill": True}}}}, True),
    ({"sites": {"a": {"time": "2:00:00", "exclusive": "user", "mem": "16G", "signal": 5}}}, True),
    ({"sites": {}}, False),
    ({"sites": {"a": {}}, "more": 1}, False),
    ({"sites": {"a": {"partitoin": "p"}}}, False),
    ({"sites": {"a": {"modules": "gcc/12"}}}, False),
    ({"sites": {"a": {"slurm": {"RESERVATION": "x"}}}}, False),
]


def sweep(grid: dict[str, Any]) -> dict[str, Any]:
    return {"name": "run", "grids": [grid]}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_fit_and_name_their_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert mistakes(yaml.safe_load(text), sweep_schema()) == []
    first = text.partition("\n")[0]
    assert first.startswith(HEADER)
    assert (path.parent / first.removeprefix(HEADER)).resolve() == FOLDER / "sweep.schema.json"


def test_the_shipped_schema_is_of_these_models() -> None:
    """python -m jobs schema sweep > jobs/sweeps/sweep.schema.json"""
    shipped = json.loads((FOLDER / "sweep.schema.json").read_text(encoding="utf-8"))
    assert shipped == sweep_schema()


@pytest.mark.parametrize("grid", GOOD)
def test_what_is_planned_fits(grid: dict[str, Any]) -> None:
    plan(sweep(grid), check=False)
    assert mistakes(sweep(grid), sweep_schema()) == []
    assert mistakes({"name": "run", "defaults": grid, "grids": [{}]}, sweep_schema()) == []


@pytest.mark.parametrize("grid", BAD)
def test_what_is_refused_does_not_fit(grid: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        plan(sweep(grid), check=False)
    assert mistakes(sweep(grid), sweep_schema())


@pytest.mark.parametrize(("raw", "fits"), SITES)
def test_site_files(raw: dict[str, Any], fits: bool, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(raw))
    if fits:
        read_site_file(path)
    else:
        with pytest.raises(InputError):
            read_site_file(path)
    assert (mistakes(raw, site_schema()) == []) == fits


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
