"""`clean`: what it removes and keeps, and that a report and `check` say the same afterwards."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
from jobs.actions.clean import clean, what_to_clean
from jobs.folder.removable import CHECKPOINTS, RECORDS, SUBMITIT, TEMPORARY, find_removable

import analysis
from analysis.cli import main as analysis_main
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.resume import find_resume_point
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import Check
from jobs.cli import main
from tests.jobs.test_run_status import begin
from tests.tools.make_run import Story, make_run

GAT = {"model": {"name": "gat"}, "data": {"name": "synthetic-citation"}, "train_steps": 12}


def cells() -> list[Experiment]:
    return [
        Experiment.model_validate(GAT | {"layout": layout, "microbatches": 2, "repeat": repeat})
        for layout in ("seq", "pp2")
        for repeat in range(3)
    ]


INVALID = (Check("edges", "invalid", "lost"),)
STORIES = {
    # Attempts 2 and 3 make up the valid one; 1 and 4 are in nobody's way, and 5 came after.
    0: (
        Story(status="failed", stop_at=2),
        Story(status="interrupted", stop_at=6),
        Story(resumed_from={"attempt": 2, "step": 6}),
        Story(status="failed", stop_at=3),
    ),
    # An invalid measurement, and the one that replaced it.
    1: (Story(audit=INVALID), Story()),
    # Two valid ones: a report holds all that are valid against one another.
    2: (Story(), Story()),
    # Never done: its checkpoints are where a rerun goes on.
    3: (Story(status="interrupted", stop_at=6), Story(status="failed", stop_at=4)),
    # Died without a result; what it went on from only its records say.
    4: (Story(finished=False, stop_at=5), Story()),
    # Went on from an attempt that died without a result, and that from whichever.
    5: (
        Story(status="failed", stop_at=2),
        Story(finished=False, stop_at=6),
        Story(resumed_from={"attempt": 2, "step": 6}),
    ),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Six cells with attempts of all kinds, each with a checkpoint and a log."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    experiments = cells()
    stories = {experiments[number].id: story for number, story in STORIES.items()}
    paths = RunPaths(make_run(tmp_path / "run", experiments, stories=stories))
    for attempt in paths.cells.glob("*/attempt-*"):
        (attempt / "checkpoints/step-00000006").mkdir(parents=True)
        (attempt / "checkpoints/step-00000006/tensors").write_bytes(os.urandom(50_000))
        (attempt / "rank-0000.log").write_text("train step 1\n")
    (paths.root / ".submitit").mkdir()
    (paths.root / ".submitit/1_submitted.pkl").write_bytes(b"x")
    (paths.code / "gnnhpc").mkdir(parents=True)
    (paths.code / "gnnhpc/.of-the-user.tmp").write_text("")
    return paths


def attempt(run: RunPaths, cell: int, number: int) -> AttemptPaths:
    return run.cell(read_manifest(run.manifest)[cell].id).attempt(number)


def aged(path: Path) -> Path:
    """As if written two hours ago."""
    os.utime(path, (time.time() - 7200,) * 2)
    return path


def removable(run: RunPaths, kind: str) -> set[str]:
    """What of a kind would be removed: of the cells by number and attempt."""
    numbers = {cell.id: str(number) for number, cell in enumerate(read_manifest(run.manifest))}
    found = [one.path.relative_to(run.root) for one in find_removable(run) if one.kind == kind]
    return {"/".join([numbers[p.parts[1]], *p.parts[2:]]) for p in found if p.parts[0] == "cells"}


def test_checkpoints_up_to_the_newest_done_attempt_go(run: RunPaths) -> None:
    expected = {"0": 3, "1": 2, "2": 2, "4": 2, "5": 3}
    assert removable(run, CHECKPOINTS) == {
        f"{cell}/attempt-{number}/checkpoints"
        for cell, last in expected.items()
        for number in range(1, last + 1)
    }


def test_records_that_a_report_reads_stay(run: RunPaths) -> None:
    assert removable(run, RECORDS) == {
        "0/attempt-1/rank-0000.jsonl",
        "1/attempt-1/rank-0000.jsonl",
    }


def test_a_rerun_goes_on_from_the_same_checkpoint(run: RunPaths) -> None:
    """As far as a checkpoint can be told without its tensors: which are looked at, newest first."""

    def looked_at() -> dict[str, list[dict[str, str]]]:
        found = {}
        for cell in read_manifest(run.manifest):
            paths = run.cell(cell.id)
            passed = find_resume_point(paths, paths.attempt(99)).passed_over
            found[cell.id] = [dict(one) for one in passed]
        return found

    before = looked_at()
    assert sum(len(each) for each in before.values()) == 3
    clean(run.root, what_to_clean(run.root))
    assert looked_at() == before


def test_report_and_check_say_the_same_afterwards(
    run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say() -> tuple[list[pd.DataFrame], str]:
        loaded = analysis.load_run(run.root)
        status = analysis_main(["check", str(run.root)])
        frames = [analysis.summarise(loaded), loaded.cells, loaded.attempts, loaded.checks]
        said = f"{status}\n{loaded.siblings}\n{capsys.readouterr().out}"
        return [*frames, loaded.steps, loaded.phases], said

    frames, checked = say()
    removed = clean(run.root, what_to_clean(run.root))
    assert {one.kind for one in removed} == {CHECKPOINTS, RECORDS, SUBMITIT}
    frames_after, checked_after = say()
    for before, after in zip(frames, frames_after, strict=True):
        pd.testing.assert_frame_equal(before, after)
    assert checked == checked_after
    assert find_removable(run) == []


def test_results_failures_logs_and_code_stay(run: RunPaths) -> None:
    def kept() -> set[Path]:
        names = ("result.json", "*.log", "*.failure.json", "*.tmp")
        return {path for name in names for path in run.root.rglob(name)}

    attempt(run, 0, 1).failure(0).write_text("{}")
    before = kept()
    clean(run.root, what_to_clean(run.root))
    assert kept() == before
    assert run.provenance.is_file() and run.manifest.is_file()


def test_only_old_temporaries_go(run: RunPaths) -> None:
    half = attempt(run, 3, 1).checkpoints / ".step-00000008.partial"
    half.mkdir()
    old = [half, run.cells / ".x.json.ab12.tmp", run.root / ".report.12.tmp"]
    old[1].write_text("")
    old[2].mkdir()
    new = attempt(run, 3, 1).root / ".result.json.cd34.tmp"
    new.write_text("")
    for path in old:
        aged(path)
    aged(run.code / "gnnhpc/.of-the-user.tmp")
    found = [one.path for one in find_removable(run) if one.kind == TEMPORARY]
    assert sorted(found) == sorted(old)


def test_a_link_is_not_followed(run: RunPaths, tmp_path: Path) -> None:
    checkpoints = attempt(run, 2, 2).checkpoints
    shutil.move(checkpoints, tmp_path / "elsewhere")
    checkpoints.symlink_to(tmp_path / "elsewhere")
    clean(run.root, what_to_clean(run.root))
    assert (tmp_path / "elsewhere/step-00000006/tensors").is_file()


def test_nothing_is_removed_while_a_cell_runs(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    one = read_manifest(run.manifest)[3]
    begin(run.cell(one.id).claim_attempt(), one, 1)
    assert main(["clean", str(run.root), "--yes"]) == 2
    assert "gat-pp2 0, which is running; allowed: a run whose" in capsys.readouterr().err
    assert len(find_removable(run)) > 10


def test_it_says_what_and_asks(
    run: RunPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No terminal to ask on.
    assert main(["clean", str(run.root)]) == 2
    said = capsys.readouterr()
    assert "checkpoints of done cells" in said.out
    assert "together " in said.out
    assert said.err == "error: clean: found no terminal to ask on; allowed: --yes\n"
    count = len(find_removable(run))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _="": "n")
    assert main(["clean", str(run.root)]) == 1
    assert len(find_removable(run)) == count
    monkeypatch.setattr("builtins.input", lambda _="": "y")
    assert main(["clean", str(run.root)]) == 0
    assert find_removable(run) == []
    assert main(["clean", str(run.root)]) == 0
    assert capsys.readouterr().out.endswith(f"nothing to remove of {run.root}\n")


def test_what_cannot_be_removed_is_named(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("jobs.actions.clean.shutil.rmtree", refuse)
    assert main(["clean", str(run.root), "--yes"]) == 1
    assert "Permission denied; 13 of 15 could not be removed" in capsys.readouterr().err
