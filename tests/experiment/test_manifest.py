"""The manifest: cells read back as written, indices never move, damage is named by its line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


CELL = Cell("gat-pp4", 0, experiment("pp4", balance=[1, 2, 1, 2], chunks="halo"), "/data/größe 1")


OTHER = Cell("gat-pp4", 1, experiment("pp4"))


def changed(**changes: Any) -> str:
    """The line of another cell of CELL's array, with other values."""
    return json.dumps(json.loads(OTHER.to_line()) | changes)


def test_a_cell_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    others = assign_indices([experiment("seq"), experiment("pp2"), experiment("seq", repeat=1)])
    write_manifest(path, [CELL, *others])
    assert read_manifest(path) == [CELL, *others]
    assert find_cell(path, "gat-seq", 1) == others[2]


def test_a_manifest_is_never_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    write_manifest(path, [CELL])
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_manifest(path, [])
    assert path.read_bytes() == before


def test_blank_lines_are_no_cells(tmp_path: Path) -> None:
    assert read_manifest(write(tmp_path / "m", "", CELL.to_line(), "  ")) == [CELL]


def test_indices_count_within_an_array_and_a_repeated_cell_is_one() -> None:
    cells = assign_indices(
        [experiment("seq"), experiment("pp2"), experiment("seq"), experiment("seq", repeat=1)]
    )
    assert [(cell.array, cell.index) for cell in cells] == [
        ("gat-seq", 0),
        ("gat-pp2", 0),
        ("gat-seq", 1),
    ]


sweeps = st.lists(
    st.builds(experiment, st.sampled_from(["seq", "pp2", "dp2"]), st.integers(0, 5)), max_size=12
)


@given(sweeps, sweeps)
def test_extending_a_sweep_moves_no_index(
    first: list[Experiment], larger: list[Experiment]
) -> None:
    before = assign_indices(first)
    added = assign_indices(larger, existing=before)
    together = before + added
    assert {cell.id for cell in together} == {e.id for e in first + larger}
    assert len({cell.id for cell in together}) == len(together)
    for array in {cell.array for cell in together}:
        indices = [cell.index for cell in together if cell.array == array]
        assert indices == list(range(len(indices)))


DAMAGE = {
    "not json": "found damaged JSON (expected ident at line 1 column 2); allowed: one cell a line",
    CELL.to_line()[:50]: "found damaged JSON (EOF while parsing a string at line 1 column 50); "
    "allowed: one cell a line",
    "[1]": "found a list; allowed: one cell a line",
    changed(version=2): "version: found 2; allowed: 1",
    '{"version": 1, "array": "a", "id": "b", "experiment": {}}': "index: found nothing; "
    "allowed: a value",
    changed(index="three"): "index: found 'three'; allowed: a whole number from 0",
    changed(index=-1): "index: found -1; allowed: a whole number from 0",
    changed(index=None): "index: found None; allowed: a whole number from 0",
    changed(experiment=None): "found nothing; allowed: a mapping of keys to values",
    changed(experiment={"data": {"name": "cora"}}): "model: found nothing; allowed: a value, "
    "this key is required",
    changed(id="another"): f"id: found another; allowed: {OTHER.id}, which its content gives",
}


@pytest.mark.parametrize(("line", "complaint"), DAMAGE.items(), ids=range(len(DAMAGE)))
def test_damage_is_named_by_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path / "manifest.jsonl", CELL.to_line(), line)
    with pytest.raises(InputError) as refused:
        read_manifest(path)
    assert str(refused.value) == f"{path}:2: {complaint}"


def test_a_content_changed_by_hand_no_longer_fits_its_id(tmp_path: Path) -> None:
    raw = json.loads(CELL.to_line())
    raw["experiment"]["train_steps"] = 99
    with pytest.raises(InputError, match=r"id: found .* which its content gives"):
        read_manifest(write(tmp_path / "m", json.dumps(raw)))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    absent = tmp_path / "manifest.jsonl"
    with pytest.raises(InputError) as refused:
        read_manifest(absent)
    assert (
        str(refused.value) == f"{absent}: found no such file; allowed: the manifest.jsonl of a run"
    )
    with pytest.raises(InputError, match=r"unreadable \(Is a directory"):
        read_manifest(tmp_path)
    absent.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="damaged JSON"):
        read_manifest(absent)


@given(sweeps)
def test_every_cell_is_found_by_its_array_and_index(experiments: list[Experiment]) -> None:
    cells = assign_indices(experiments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "manifest.jsonl"
        write_manifest(path, cells)
        assert [find_cell(path, cell.array, cell.index) for cell in cells] == cells


@pytest.mark.parametrize("line", [*DAMAGE, OTHER.to_line().replace("gat-pp4", "another")])
def test_a_worker_reads_its_own_line_alone(tmp_path: Path, line: str) -> None:
    """What is wrong with other cells is for status and the report to say."""
    path = write(tmp_path / "manifest.jsonl", line, "", CELL.to_line(), line)
    assert find_cell(path, CELL.array, CELL.index) == CELL


@pytest.mark.parametrize("line", DAMAGE)
def test_a_worker_refuses_its_own_damaged_line(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "manifest.jsonl", CELL.to_line(), line)
    with pytest.raises(InputError, match=r"manifest.jsonl"):
        find_cell(path, OTHER.array, OTHER.index)


def test_a_cell_that_is_there_twice_is_not_run(tmp_path: Path) -> None:
    path = write(tmp_path / "manifest.jsonl", OTHER.to_line(), CELL.to_line(), OTHER.to_line())
    with pytest.raises(InputError) as refused:
        find_cell(path, OTHER.array, 1)
    said = f"index: found 1 of gat-pp4, which {path}:1 has too; allowed: each index of an array"
    assert str(refused.value).startswith(f"{path}:3: {said}")


def test_an_index_elsewhere_in_a_line_is_not_the_cells(tmp_path: Path) -> None:
    """Longer numbers, and keys of the same name before the index."""
    twelve = json.dumps({"data": {"index": 1}} | json.loads(changed(index=12)))
    path = write(tmp_path / "manifest.jsonl", twelve, OTHER.to_line().replace(": ", " :  "))
    assert find_cell(path, OTHER.array, 1) == OTHER


def test_an_array_task_that_means_no_cell(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    write_manifest(
        path, assign_indices([experiment("seq"), experiment("seq", 1), experiment("pp2")])
    )
    with pytest.raises(InputError, match="array: found vig-seq; allowed: gat-pp2, gat-seq"):
        find_cell(path, "vig-seq", 0)
    with pytest.raises(InputError, match="index of gat-seq: found 2; allowed: 0 to 1"):
        find_cell(path, "gat-seq", 2)
