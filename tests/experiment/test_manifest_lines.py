"""A manifest that has lost a cell, or has one twice, is refused wherever a run is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from analysis.cli import main as analysis
from analysis.load.run_data import load_run
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.experiment.manifest_lines import read_manifest_lines
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.rerun import rerun
from jobs.cli import main as jobs
from jobs.cluster.launch import Launch
from jobs.folder.run_folder import create_run_folder, extend_run_folder
from jobs.folder.submission_records import read_submissions, record_submission
from jobs.spec.planning import Plan, plan
from jobs.state.run_status import status

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"], "seeds": [0, 1]}
MORE = GRID | {"seeds": [0, 1, 2]}


def planned(grid: dict[str, object]) -> Plan:
    return plan({"name": "run", "defaults": {"train_steps": 10}, "grids": [grid]})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Four cells in two arrays, on a machine without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    return create_run_folder(planned(GRID), tmp_path / "run", Launch())


def lines_of(run: RunPaths) -> list[str]:
    return run.manifest.read_text().splitlines(keepends=True)


def keep(run: RunPaths, *numbers: int) -> None:
    """Leave these lines of the manifest, in this order."""
    lines = lines_of(run)
    run.manifest.write_text("".join(lines[number] for number in numbers))


READERS: dict[str, Callable[[Path], object]] = {
    "status": status,
    "rerun": lambda root: rerun(root, missing=True, cluster="local"),
    "report": load_run,
    "verify": lambda root: read_manifest(root / "manifest.jsonl"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("left", "says"),
    [
        ((), "manifest.jsonl: found no cell; allowed: one cell a line"),
        ((0,), "manifest.jsonl: cells: found 1; allowed: at least 4, as provenance.json says"),
        ((0, 1, 2), "cells: found 3; allowed: at least 4"),
        ((0, 2, 3, 1, 1), ":5: id: found"),
        ((1, 2, 3), ":2: index: found 1 of gat-seq without 0; allowed: every index from 0"),
    ],
    ids=["empty", "one line", "without the last", "one twice", "without the first"],
)
def test_a_manifest_without_all_its_cells(
    run: RunPaths, left: tuple[int, ...], says: str, reader: str
) -> None:
    keep(run, *left)
    with pytest.raises(InputError) as refused:
        READERS[reader](run.root)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_it_is_one_line_and_status_2(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    keep(run, 0)
    for command in (jobs, analysis):
        name = "status" if command is jobs else "report"
        assert command([name, str(run.root)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"{run.manifest}: cells: found 1; allowed: at least 4" in error


def test_another_cell_under_an_index_that_is_taken(run: RunPaths) -> None:
    lines = lines_of(run)
    third = json.loads(lines[2]) | {"index": 0}
    run.manifest.write_text("".join([*lines[:2], json.dumps(third) + "\n", lines[3]]))
    with pytest.raises(InputError, match=r":3: index: found 0 of gat-seq, which .*:1 has too"):
        read_manifest_lines(run.manifest)


@pytest.mark.parametrize("seen", ["submissions.jsonl", "cells/"])
def test_a_cell_that_was_added_later_is_not_lost_either(run: RunPaths, seen: str) -> None:
    """provenance.json counts the cells of the first submission alone."""
    launch = Launch()
    extend_run_folder(planned(MORE), run, launch, launch)
    added = read_manifest(run.manifest)[-1]
    assert len(read_manifest(run.manifest)) == 6
    if seen == "cells/":
        run.cell(added.id).claim_attempt()
    else:
        record_submission(run, "slurm", added.array, [added.index], "12", launch)
    assert status(run.root).counts()
    keep(run, 0, 1, 2, 3, 4)
    for reader in READERS.values():
        with pytest.raises(InputError, match=rf"cells: found no line of .*{seen}"):
            reader(run.root)


def test_what_is_no_cell_may_lie_beside_them(run: RunPaths) -> None:
    (run.cells / "notes").mkdir()
    (run.cells / ".DS_Store").write_text("")
    assert len(read_manifest_lines(run.manifest)) == 4
    assert status(run.root).counts() == {"missing": 4}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff\xfe\n", r"submissions.jsonl:1: found damaged JSON"),
        (b"null\n", r"submissions.jsonl:1: found nothing"),
        (b"{}\n", r"submissions.jsonl:1: version: found nothing; allowed: 1"),
        (b"[" * 100_000, r"submissions.jsonl:1: found damaged JSON \(recursion limit"),
    ],
    ids=["not UTF-8", "null", "empty", "deep"],
)
@pytest.mark.parametrize("reader", ["status", "rerun", "report"])
def test_damaged_submissions(run: RunPaths, text: bytes, says: str, reader: str) -> None:
    run.submissions.write_bytes(text)
    with pytest.raises(InputError, match=says):
        READERS[reader](run.root)


def test_submissions_of_other_types(run: RunPaths) -> None:
    record_submission(run, "local", "gat-seq", [0, 1], "12", Launch())
    good = json.loads(run.submissions.read_text())
    for key, value in (
        ("job_id", "twelve"), ("indices", 3), ("array", None), ("host", []), ("colour", "red"),
    ):  # fmt: skip
        run.submissions.write_text(json.dumps(good | {key: value}) + "\n")
        with pytest.raises(InputError, match=r"submissions\.jsonl"):
            status(run.root)


def test_a_line_separator_in_a_command_ends_no_line(run: RunPaths) -> None:
    record_submission(run, "slurm", "gat-seq", [0, 1], "12", Launch())
    raw = json.loads(run.submissions.read_text()) | {"command": ["python", "a\u2028b"]}
    run.submissions.write_text(json.dumps(raw, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_submissions(run)[0].command == ("python", "a\u2028b")


def test_the_fields_of_a_line_are_kept(run: RunPaths) -> None:
    first = read_manifest_lines(run.manifest)[0]
    assert asdict(first)["raw"] == json.loads(lines_of(run)[0])
    assert (first.array, first.index) == ("gat-seq", 0)
