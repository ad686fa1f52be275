"""`list`: the runs of a folder, damaged ones too, with at most one question to Slurm."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result
from jobs.cli import main
from jobs.cluster.launch import Launch
from jobs.folder.disk_use import disk_use
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import record_submission
from jobs.printing.runs_table import format_age
from jobs.printing.sizes import format_size
from jobs.spec.planning import plan
from jobs.state.known_runs import KnownRun, known_runs

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": "seq", "seeds": [0, 1]}
LATER = "2126-01-01T00:00:00+00:00"
EARLIER = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A squeue that lists task 1 of job 17 as running; returns how often it was asked."""
    shim = tmp_path / "bin/squeue"
    shim.parent.mkdir()
    calls = tmp_path / "calls"
    line = "\x1f".join(("17_1", "RUNNING", "None", "gat-seq@one", "/x", ""))
    shim.write_text(f"#!/bin/sh\necho asked >>{calls}\nprintf '%s\\n' '{line}'\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    return lambda: len(calls.read_text().split()) if calls.exists() else 0


def make(folder: Path, name: str, created_at: str = EARLIER, job: str | None = None) -> RunPaths:
    """A run of two cells of one array."""
    one = plan({"name": name, "defaults": {"train_steps": 10}, "grids": [GRID]})
    paths = create_run_folder(one, folder / name, Launch(live=True))
    facts = json.loads(paths.provenance.read_text()) | {"created_at": created_at}
    paths.provenance.write_text(json.dumps(facts))
    if job is not None:
        record_submission(paths, "slurm", "gat-seq", [0, 1], job, Launch())
    return paths


def finish(run: RunPaths, index: int, ended_at: str = LATER) -> None:
    one = read_manifest(run.manifest)[index]
    attempt = run.cell(one.id).claim_attempt()
    values: dict[str, Any] = {
        "cell": one.id, "attempt": attempt.number, "status": "done", "experiment": {},
        "layout": {}, "provenance": {}, "started_at": EARLIER, "ended_at": ended_at,
        "train_steps": 10, "test_steps": 1, "samples_per_step": 5,
    }  # fmt: skip
    Result(**values).write(attempt.result)


def by_name(folder: Path) -> dict[str, KnownRun]:
    return {one.run.name: one for one in known_runs(folder)}


def counts(one: KnownRun) -> dict[str, int]:
    assert one.status is not None, one.damage
    return one.status.counts()


def test_slurm_is_asked_once_for_all_runs(tmp_path: Path, squeue: Callable[[], int]) -> None:
    folder = tmp_path / "runs"
    for name, job in (("one", "17"), ("two", "18"), ("done", "19")):
        make(folder, name, job=job)
    for index in (0, 1):
        finish(RunPaths(folder / "done"), index)
    finish(RunPaths(folder / "one"), 0)
    found = by_name(folder)
    assert counts(found["one"]) == {"done": 1, "running": 1}
    # Slurm was asked after its submission, and has no such job.
    assert counts(found["two"]) == {"missing": 2}
    assert counts(found["done"]) == {"done": 2}
    assert squeue() == 1


def test_slurm_is_not_asked_of_runs_that_have_ended(
    tmp_path: Path, squeue: Callable[[], int]
) -> None:
    run = make(tmp_path / "runs", "done", job="17")
    for index in (0, 1):
        finish(run, index)
    assert counts(by_name(tmp_path / "runs")["done"]) == {"done": 2}
    assert squeue() == 0


def test_slurm_is_asked_of_a_cell_that_is_measured_again(
    tmp_path: Path, squeue: Callable[[], int]
) -> None:
    run = make(tmp_path / "runs", "one", job="17")
    for index in (0, 1):
        finish(run, index, ended_at=EARLIER)
    # Of cell 0 Slurm has no job any more.
    assert counts(by_name(tmp_path / "runs")["one"]) == {"running": 1, "done": 1}
    assert squeue() == 1


def test_an_id_that_two_clusters_gave_is_not_asked_of(
    tmp_path: Path, squeue: Callable[[], int]
) -> None:
    folder = tmp_path / "runs"
    for name, job, layout in (("one", "17", "seq"), ("two", "17", "pp2"), ("three", "18", "seq")):
        one = plan({"name": name, "grids": [GRID | {"layouts": layout}]})
        paths = create_run_folder(one, folder / name, Launch(live=True))
        record_submission(paths, "slurm", f"gat-{layout}", [0, 1], job, Launch())
    sacct = tmp_path / "bin/sacct"
    sacct.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    sacct.chmod(0o755)
    known_runs(folder)
    assert "--jobs=18\n" in (tmp_path / "asked").read_text()


def test_damaged_folders_are_named_and_the_others_shown(
    tmp_path: Path, squeue: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    make(folder, "whole")
    make(folder, "cut", "2026-02-01T00:00:00+00:00").manifest.write_text('{"version": 1')
    make(folder, "gone", "2026-03-01T00:00:00+00:00").manifest.unlink()
    (folder / "notes").mkdir()
    (folder / "a-file").write_text("")
    assert main(["list", "--runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["run", "gone", "cut", "whole"]
    assert "damaged: " in lines[1] and "no manifest.jsonl in it" in lines[1]
    assert "damaged: manifest.jsonl:1: found damaged JSON" in lines[2]
    assert lines[3].endswith("2 missing")


def test_list_for_scripts(
    tmp_path: Path, squeue: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path / "runs", "one", job="17")
    finish(run, 0)
    assert main(["list", "--json", "--runs", str(tmp_path / "runs")]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["run"] == str(run.root)
    assert one["counts"] == {"done": 1, "running": 1}
    assert one["bytes"] == disk_use(run.root) > 0
    assert one["damage"] is None
    assert one["age_s"] > 0


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        known_runs(tmp_path / "nowhere")


def test_an_empty_folder_has_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no run in {tmp_path}\n"


def test_size_on_disk_counts_each_file_and_follows_no_link(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "b").mkdir(parents=True)
    before = disk_use(folder)
    assert before is not None
    (folder / "b/data").write_bytes(os.urandom(100_000))
    (tmp_path / "large").write_bytes(os.urandom(1_000_000))
    (folder / "link").symlink_to(tmp_path / "large")
    (folder / "loop").symlink_to(folder)
    grown = disk_use(folder)
    assert grown is not None
    assert 100_000 <= grown - before < 200_000
    assert disk_use(tmp_path / "nowhere") == 0


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1000 * 1024, "0.977 MiB"),
     (None, "unknown"), (5 * 1024**2, "5 MiB"), (3 * 1024**4, "3 TiB")],
)  # fmt: skip
def test_sizes_are_short(size: int | None, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "now"), (59, "now"), (60, "1 min"), (7200, "2 h"), (86400 * 3.9, "3 d"), (4e7, "1 y")],
)
def test_ages_are_whole_units(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_records_of_older_runs_are_known_by_their_folder(tmp_path: Path) -> None:
    run = make(tmp_path, "old")
    run.provenance.unlink()
    assert by_name(tmp_path)["old"].created_at == run.root.stat().st_mtime
    assert asdict(by_name(tmp_path)["old"])["damage"] is None
