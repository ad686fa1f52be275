"""The suite itself: submitting, asking and reporting at sizes where slowness would be felt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml

from benchmarks.isolated import timed
from benchmarks.ratios import against_limit
from benchmarks.table import Parts, Row

CELLS = 10_000
REPORTED, RANKS, STEPS = 1_000, 4, 120
SUBMIT_LIMIT_S, STATUS_LIMIT_S, REPORT_LIMIT_S = 3.0, 2.0, 15.0
REPORT_LIMIT_MIB = 1024.0


def parts(folder: Path, *, quick: bool) -> Parts:
    return {
        "submit": partial(_submit, folder, quick=quick),
        "status": partial(_status, folder, quick=quick),
        "report": partial(_report, folder, quick=quick),
    }


def _submit(folder: Path, *, quick: bool) -> Iterator[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / "sweep.yaml"
    spec.write_text(yaml.safe_dump(_sweep()), encoding="utf-8")
    command = _module("jobs", "submit", str(spec), "--dry-run", "--runs", str(folder / "runs"))
    seconds = [timed(command).wall_s for _ in range(1 if quick else 3)]
    what = f"jobs submit --dry-run of {CELLS:,} cells, seconds; limit {SUBMIT_LIMIT_S:g}"
    yield Row(what, against_limit(seconds, SUBMIT_LIMIT_S), 1.0)


def _sweep() -> dict[str, object]:
    """4 layouts x 5 micro-batches x 500 repeats."""
    return {
        "name": "many",
        "grids": [
            {
                "models": ["vig"],
                "data": ["synthetic-cifar10"],
                "layouts": ["pp2", "pp4", "dp2", "dp2-pp2"],
                "microbatches": [1, 2, 4, 5, 10],
                "batch_size": 100,
                "repeats": CELLS // 20,
            }
        ],
    }


def _status(folder: Path, *, quick: bool) -> Iterator[Row]:
    cells = 500 if quick else CELLS
    run = _made(folder / "status", cells, steps=2, layout="seq")
    seconds = [timed(_module("jobs", "status", str(run))).wall_s for _ in range(1 if quick else 3)]
    what = f"jobs status of {cells:,} cells, seconds; limit {STATUS_LIMIT_S:g}"
    yield Row(what, against_limit(seconds, STATUS_LIMIT_S), 1.0)


def _report(folder: Path, *, quick: bool) -> Iterator[Row]:
    cells = 50 if quick else REPORTED
    run = _made(folder / "report", cells, steps=STEPS, layout=f"pp{RANKS}")
    command = _module("analysis", "report", str(run))
    spent = [timed(command) for _ in range(1 if quick else 2)]
    what = f"analysis report of {cells:,} cells x {RANKS} ranks x {STEPS} steps"
    seconds, mib = [s.wall_s for s in spent], [s.peak_mib for s in spent]
    limits = f"seconds; limit {REPORT_LIMIT_S:g}", f"peak MiB; limit {REPORT_LIMIT_MIB:g}"
    yield Row(f"{what}, {limits[0]}", against_limit(seconds, REPORT_LIMIT_S), 1.0)
    yield Row(f"{what}, {limits[1]}", against_limit(mib, REPORT_LIMIT_MIB), 1.0)


def _made(run: Path, cells: int, *, steps: int, layout: str) -> Path:
    """A run folder as workers would have left it, without running anything."""
    command = _module(
        "tests.tools.make_run", str(run), "--cells", str(cells), "--steps", str(steps)
    )
    timed([*command, "--layout", layout])
    return run


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]
