"""Sweeps on this machine: real ranks, failures, cancelling and turns."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.run_paths import RunPaths
from jobs.cli import main
from jobs.run.status import status
from jobs.slurm.batch_script import Launch
from jobs.slurm.site_settings import Site
from jobs.submit.local_scheduler import LOCK_VARIABLE, machine_lock
from jobs.submit.rerun import Selection, rerun
from jobs.submit.submission import Options
from jobs.submit.submit import Submitted, cancel, submit
from jobs.sweep.plan import plan
from tests.validation.custom_models import GRAPH

TINY = {
    "models": [{"name": "gat", "layers": 2, "heads": 2, "hidden": 4}],
    "data": [{"name": "synthetic-citation", "nodes": 60, "edges": 240, "features": 8}],
    "train_steps": 2,
    "test_steps": 1,
    "microbatches": [1],
}


def ends(printed: str) -> dict[str, str]:
    """How each cell ended, from what a local run prints."""
    lines = [line.partition("] ")[2] for line in printed.splitlines() if line.startswith("[")]
    words = [line.split(" ", 2) for line in lines]
    return {f"{array}:{index.strip(':')}": rest for array, index, rest in words}


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Submitted]:
    """Submits a tiny sweep to this machine; `program` stands for the ranks' interpreter."""
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))

    def submitted(
        layouts: list[str], site: Site | None = None, program: str | None = None, **options: Any
    ) -> Submitted:
        if program is not None:
            script = tmp_path / "python"
            script.write_text(f"#!/bin/bash\n{program}\n")
            script.chmod(0o755)
            monkeypatch.setattr("jobs.submit.submit.Launch", partial(Launch, python=str(script)))
        grid = TINY | {"layouts": layouts} | options.pop("grid", {})
        planned = plan({"name": "run", "grids": [grid]})
        chosen = {"live": True, "wait": True, "site": ("test", site or Site())} | options
        return submit(planned, Options(cluster="local", **chosen), runs=tmp_path / "runs")

    return submitted


def test_cells_run_one_after_another_and_again(
    local: Callable[..., Submitted], capsys: pytest.CaptureFixture[str]
) -> None:
    done = local(["seq", "pp2"], live=False)
    lines = ends(capsys.readouterr().out)
    assert done.failed == 0, lines
    assert all(line.startswith("done") for line in lines.values())
    current = status(done.run)
    assert (current.counts(), current.slurm) == ({"done": 2}, "local run")
    assert list(RunPaths(done.run).logs.glob("gat-pp2-0-local-*.log"))
    again = rerun(done.run, Selection("gat-seq", "0"), Options("local", wait=True))
    assert again.failed == 0
    capsys.readouterr()
    assert main(["status", str(done.run)]) == 0
    head, seq, pp2, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["array", "cells", "done", "attempts"]
    assert (seq.split(), pp2.split()) == (["gat-seq", *"112"], ["gat-pp2", *"111"])


def test_ranks_get_the_variables_of_their_own_group_alone(
    local: Callable[..., Submitted],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """These write no attempt, so the cell has failed."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    program = f'env >"{tmp_path}/rank-$RANK"; echo no such library; exit 1'
    done = local(["pp2"], Site(cpus_per_task=2), program)
    for rank in (0, 1):
        lines = (tmp_path / f"rank-{rank}").read_text().splitlines()
        assert {f"RANK={rank}", "WORLD_SIZE=2", "OMP_NUM_THREADS=2"} <= set(lines)
        assert not any(line.startswith("SLURM") for line in lines)
    assert done.failed == 1
    assert ends(capsys.readouterr().out)["gat-pp2:0"].startswith(
        "failed before it had an attempt: see logs/gat-pp2-0-"
    )
    (log,) = RunPaths(done.run).logs.glob("gat-pp2-0-*.log")
    assert log.read_text() == "no such library\n" * 2


def test_an_invalid_cell_counts_as_failed(
    local: Callable[..., Submitted],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reads_halo_rows = GRAPH.replace("x[: block.rows_out]", "x[-block.rows_out :]")
    (tmp_path / "last_rows.py").write_text(reads_halo_rows)
    monkeypatch.chdir(tmp_path)
    done = local(["seq"], grid={"models": ["last_rows:Net"], "microbatches": [2]})
    assert done.failed == 1
    ended = ends(capsys.readouterr().out)
    assert ended["last_rows.Net-seq:0"].startswith("done")
    assert ended["last_rows.Net-seq:1"].startswith("invalid (flags: engine-parity")
    assert [cell.state for cell in status(done.run).cells] == ["done", "invalid"]


def test_cancel_stops_a_run_of_another_terminal_with_its_ranks(
    local: Callable[..., Submitted], tmp_path: Path
) -> None:
    started, run = tmp_path / "started", tmp_path / "runs" / "run"
    program = f"echo $$ >{shlex.quote(str(started))}; exec sleep 600"
    submitting = multiprocessing.get_context("fork").Process(
        target=local, args=(["seq"],), kwargs={"program": program}
    )
    submitting.start()
    deadline = time.monotonic() + 60
    while not (started.exists() and started.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert status(run).counts() == {"pending": 1}
    assert cancel(run) == [f"local process {submitting.pid}"]
    submitting.join(30)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert status(run).counts() == {"missing": 1}


def test_a_local_run_waits_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    entered = threading.Event()

    def second() -> None:
        with machine_lock():
            entered.set()

    waiting = threading.Thread(target=second)
    with machine_lock():
        waiting.start()
        assert not entered.wait(0.3)
    waiting.join(30)
    assert entered.is_set()
    assert capfd.readouterr().err == "waits for another local run on this machine\n"


def test_a_paired_run_follows_the_random_order_of_its_blocks(
    local: Callable[..., Submitted], capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"repeats": 6, "seq_microbatches": [1]}
    done = local(["seq", "pp2"], program="exit 1", paired=True, grid=grid)
    lines = capsys.readouterr().out.splitlines()
    started = [line.split()[2] for line in lines if line.endswith(" started")]
    rows = RunPaths(done.run).block_table("gat-paired").read_text().splitlines()[1:]
    assert started == [row.split("\t")[4] for row in rows]
    layouts = [row.split("\t")[1] for row in rows]
    assert layouts != ["gat-seq", "gat-pp2"] * 6
