"""The manifest: cells read back as written, indices never move, damage is named by its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import (
    Cell,
    assign_indices,
    find_cell,
    read_manifest,
    write_manifest,
)


def experiment(layout: str = "seq", repeat: int = 0, **changes: Any) -> Experiment:
    raw = {"model": {"name": "gat"}, "data": {"name": "cora"}, "layout": layout, "repeat": repeat}
    return Experiment.model_validate(raw | changes)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


CELL = Cell.of(
    "gat-pp4", 0, experiment("pp4", balance=[1, 2, 1, 2], chunks="halo"), "/data/größe 1"
)


OTHER = Cell.of("gat-pp4", 1, experiment("pp4"))


def changed(**changes: Any) -> str:
    """The line of another cell of CELL's array, with other values."""
    return json.dumps(json.loads(OTHER.to_line()) | changes)


def test_a_cell_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    others = assign_indices([experiment("seq"), experiment("pp2"), experiment("seq", repeat=1)])
    write_manifest(path, [CELL, *others])
    assert read_manifest(path) == [CELL, *others]
    assert find_cell(path, "gat-seq", 1) == others[2]
    with pytest.raises(FileExistsError):
        write_manifest(path, [])


def test_the_cells_after_the_first_thousand_are_an_array_of_their_own() -> None:
    repeats = [experiment("seq", repeat=repeat) for repeat in range(1001)]
    cells = assign_indices([*repeats, repeats[0], experiment("pp2")])
    assert [(cell.array, cell.index) for cell in cells[999:]] == [
        ("gat-seq", 999),
        ("gat-seq.2", 0),
        ("gat-pp2", 0),
    ]


DAMAGE = {
    "not json": "found damaged JSON (expected ident at line 1 column 2); allowed: one cell a line",
    changed(version=2): "version: found 2; allowed: 1",
    changed(experiment=None): "experiment: found nothing; allowed: a mapping of keys to values",
    changed(data_root=3): "data_root: found 3; allowed: text",
    # Noticed when it is used.
    changed(experiment={"data": {"name": "cora"}}): "model: found nothing; allowed: a value, "
    "this key is required",
    changed(id="another"): f"id: found another; allowed: {OTHER.id}, which its content gives",
}


@pytest.mark.parametrize(("line", "complaint"), DAMAGE.items(), ids=range(len(DAMAGE)))
def test_damage_is_named_by_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path / "manifest.jsonl", CELL.to_line(), line)
    with pytest.raises(InputError) as refused:
        _ = [cell.experiment for cell in read_manifest(path)]
    assert str(refused.value) == f"{path}:2: {complaint}"


def test_an_array_task_that_means_no_cell(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    write_manifest(
        path, assign_indices([experiment("seq"), experiment("seq", 1), experiment("pp2")])
    )
    with pytest.raises(InputError, match="array: found vig-seq; allowed: gat-pp2, gat-seq"):
        find_cell(path, "vig-seq", 0)
    with pytest.raises(InputError, match="index of gat-seq: found 2; allowed: 0 to 1"):
        find_cell(path, "gat-seq", 2)
