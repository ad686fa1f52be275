"""`submit --precision`: how many repeats a wanted precision needs, from a run that is there."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from gnnhpc.core.student_t import repeats_needed
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths
from jobs.cli import main
from jobs.state.needed_repeats import Needed, needed_repeats
from tests.tools.cells import sampled
from tests.tools.make_run import Story, make_run

SPEC = """\
name: run
grids:
  - {models: gat, data: {name: synthetic-citation}, layouts: [seq, pp2], microbatches: [2]}
"""
HOURS = (1.0, 1.2, 1.5)
"""How much slower all cells of a repeat are."""
OWN = (0.99, 1.0, 1.01)
"""And those of two stages besides."""


def gat(layout: str, microbatches: int, repeat: int) -> Experiment:
    raw = {"model": {"name": "gat"}, "data": {"name": "synthetic-citation"}, "train_steps": 4}
    return Experiment.model_validate(
        raw | {"layout": layout, "microbatches": microbatches, "repeat": repeat}
    )


def scaled(root: Path, repeats: int = 3, last: Story | None = None) -> Path:
    """A run whose training steps last exactly as long as `HOURS` and `OWN` say."""
    cells = [gat(*how, repeat) for repeat in range(repeats) for how in (("seq", 1), ("pp2", 2))]
    make_run(root, cells, stories={cells[-1].id: [last or Story()]})
    for cell in read_manifest(RunPaths(root).manifest):
        one = cell.experiment
        seconds = HOURS[one.repeat] * (OWN[one.repeat] if str(one.layout) == "pp2" else 1.0)
        for path in root.glob(f"cells/{cell.id}/attempt-1/rank-0000.jsonl"):
            records = [json.loads(line) for line in path.read_text().splitlines()]
            for record in records:
                if record["kind"] == "step":
                    record["wall_s"] = 9.0 if record["warmup"] else seconds
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return root


def by_array(root: Path, precision: float = 0.02) -> dict[str, Needed]:
    return {row.array: row for row in needed_repeats(RunPaths(root), precision)}


def test_means_differ_by_the_hour_and_speedups_by_their_own(tmp_path: Path) -> None:
    found = by_array(scaled(tmp_path / "run"))
    seq, pp2 = found["gat-seq"], found["gat-pp2"]
    assert seq.step is not None and pp2.step is not None and pp2.speedup is not None
    logs = [math.log(hour) for hour in HOURS]
    mean = sum(logs) / 3
    spread = math.sqrt(sum((one - mean) ** 2 for one in logs) / 2)
    assert (seq.step.runs, seq.step.share) == (3, pytest.approx(spread))
    assert seq.step.repeats == repeats_needed(spread, 0.02)
    assert seq.speedup is None, "it is the baseline"
    assert pp2.speedup.share == pytest.approx(0.01, rel=0.01)
    assert pp2.speedup.repeats == repeats_needed(pp2.speedup.share, 0.02)
    assert pp2.repeats == pp2.step.repeats > pp2.speedup.repeats


def test_to_draw_a_mini_batch_is_part_of_its_step(tmp_path: Path) -> None:
    root = tmp_path / "run"
    cells = [sampled(test_steps=0, repeat=repeat) for repeat in range(3)]
    make_run(root, cells)
    for cell, hour in zip(cells, HOURS, strict=True):
        (path,) = root.glob(f"cells/{cell.id}/attempt-1/rank-0000.jsonl")
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records[1:]:
            record |= {"wall_s": 0.1, "data_s": hour - 0.1}
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,) = by_array(root).values()
    assert found.step is not None
    assert found.step.share == pytest.approx(statistics.stdev(map(math.log, HOURS)))


def test_only_valid_runs_tell(tmp_path: Path) -> None:
    found = by_array(scaled(tmp_path / "run", last=Story(status="failed", stop_at=2)))
    pp2 = found["gat-pp2"]
    assert pp2.step is not None and pp2.step.runs == 2
    alone = by_array(scaled(tmp_path / "alone", repeats=1))
    assert all(row.step is row.speedup is None for row in alone.values())


def test_submit_says_how_many_and_submits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    root = scaled(tmp_path / "runs" / "run")
    before = sorted(root.rglob("*"))
    asked = ["submit", "spec.yaml", "--cluster", "local", "--precision"]
    assert main([*asked, "0.1"]) == 0
    out = capsys.readouterr().out
    needed = max(row.repeats or 0 for row in by_array(root, 0.1).values())
    assert f"a precision of 10.00% needs {needed} repeats" in out
    assert f"--extend --set repeats={needed}" in out
    assert sorted(root.rglob("*")) == before
    assert main([*asked, "2"]) == 2
    assert "--precision: found 2.0; allowed: a share" in capsys.readouterr().err


def test_one_run_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    assert main(["submit", "spec.yaml", "--dry-run", "--precision", "0.02"]) == 0
    assert "yet, whose repeats would tell" in capsys.readouterr().err
    scaled(tmp_path / "runs" / "run", repeats=1)
    assert main(["submit", "spec.yaml", "--precision", "0.02"]) == 0
    assert "one run says nothing about how runs differ" in capsys.readouterr().out
