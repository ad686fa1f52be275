"""A run folder of version 0.1.0, made before the packages had rooms, is still ours to use."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
from pathlib import Path

import pytest

from analysis.cli import main as analysis
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.provenance import code_digest
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result, read_lines
from jobs.cli import main as jobs

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "data" / "run-folder-0.1.0.tar.gz"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    # Not by tarfile: Python before 3.11.4 has no filter, later ones warn without it.
    subprocess.run(["tar", "-xzf", str(FOLDER), "-C", str(tmp_path)], check=True)
    return RunPaths(tmp_path / "old-run")


def test_its_cells_keep_their_ids(run: RunPaths) -> None:
    cells = read_manifest(run.manifest)
    assert [cell.id for cell in cells] == [
        "vig-synthetic-cifar10-seq-m2-s0-r0-8b3b6660dd",
        "vig-synthetic-cifar10-pp2-m2-s0-r0-fc2549e9e3",
        "gat-synthetic-citation-seq-m1-s0-r0-4a6e69099a",
        "gat-synthetic-citation-dp2-pp2-m2-s0-r0-2001693a2b",
    ]


def test_it_is_shown_and_reported(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs(["status", str(run.root)]) == 0
    assert "old-run: 4 done" in capsys.readouterr().out
    assert analysis(["report", str(run.root)]) == 0
    lines = (run.report / "summary.csv").read_text().splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=False)) for line in lines[1:]]
    train = {(row["model"], row["layout"]): row for row in rows if row["phase"] == "train"}
    assert set(train) == {("vig", "seq"), ("vig", "pp2"), ("gat", "seq"), ("gat", "dp2-pp2")}
    # As the version that made it reported it.
    assert float(train["vig", "pp2"]["median_s"]) == pytest.approx(0.01289, rel=1e-3)
    assert float(train["gat", "dp2-pp2"]["speedup"]) == pytest.approx(0.138, abs=2e-3)


@pytest.mark.distributed
def test_a_stopped_attempt_goes_on_from_its_checkpoint(run: RunPaths) -> None:
    cell = read_manifest(run.manifest)[1]
    again = ["rerun", str(run.root), "--array", "vig-pp2", "--index", "0"]
    assert jobs([*again, "--cluster", "local", "--wait"]) == 0
    attempts = run.cell(cell.id).attempts()
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    result = Result.read(attempts[2].result)
    assert result.valid, [check for check in result.audit if check.verdict == "invalid"]
    assert result.resumed_from is not None
    assert (result.resumed_from["attempt"], result.resumed_from["step"]) == (2, 21)
    assert result.resumed_from["written_by"] == "unknown"
    assert result.provenance["code_from"] == "live"
    whole, resumed = (losses(attempt.records(1)) for attempt in (attempts[0], attempts[2]))
    assert sorted(resumed) == list(range(21, 40))
    # Another make of CPU rounds otherwise, so not to the bit.
    assert resumed[21] == pytest.approx(whole[21], rel=1e-3)


def losses(records: Path) -> dict[int, float]:
    lines = [line for line in read_lines(records) if line["kind"] == "step"]
    return {line["step"]: line["loss"] for line in lines if line["phase"] == "train"}


def test_a_pending_job_of_submitit_finds_its_task(run: RunPaths) -> None:
    pending = next((run.root / ".submitit").glob("*_submitted.pkl"))
    task = pickle.loads(pending.read_bytes()).function
    assert (task.array, task.index) == ("gat-seq", None)
    moved = dataclasses.replace(task, manifest=str(run.manifest), index=0)
    assert moved() == 0
    cell = read_manifest(run.manifest)[2]
    result = Result.read(run.cell(cell.id).attempt(2).result)
    assert result.valid, [check for check in result.audit if check.verdict == "invalid"]
    assert (result.provenance["code_from"], result.provenance["code"]) == ("live", code_digest())
