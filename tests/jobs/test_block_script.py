"""The script of a block, run by bash with programs that stand for Slurm's."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.records.block_table import read_block_table
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.array_script import render_script
from jobs.cluster.blocks import draw_blocks, needs_of
from jobs.cluster.launch import Launch
from jobs.cluster.site import Site
from jobs.folder.run_folder import create_run_folder
from jobs.spec.planning import Plan, plan
from tests.jobs.test_array_script import HOME, compare

GRID = {
    "models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2", "dp2-pp2"],
    "microbatches": 2, "seq_microbatches": 1, "repeats": 3,
}  # fmt: skip


@dataclass
class Block:
    """Block 1 of a run, where srun writes down what it was asked for and ends as it is told."""

    run: RunPaths
    folder: Path
    cells: list[tuple[str, int]]
    statuses: dict[str, int] = field(default_factory=dict)
    """By array."""
    end: str = ""
    """What scontrol says of the job's end."""

    def ends_in(self, minutes: float) -> None:
        end = datetime.now() + timedelta(minutes=minutes)
        self.end = f" StartTime=2026-01-01T00:00:00 EndTime={end:%Y-%m-%dT%H:%M:%S} Deadline=N/A"

    def start(self, site: Site | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the script as a job's shell does; its output is that of the block's log."""
        launch = Launch("here", site or Site(), live=True)
        (array,) = draw_blocks(planned().cells)
        script = self.folder / "spooled"
        script.write_text(render_script(array, self.run.root, needs_of(array, launch.site), launch))
        self._program("srun", f"cat >>{self.folder}/stdin", self._srun())
        self._program(
            "scontrol",
            f'[ "$1" = show ] || {{ echo "$*" >>{self.folder}/scontrol; exit; }}',
            f"echo '{self.end}'",
        )
        job = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "17", "SLURM_JOB_ID": "19"}
        bare = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(script)],
            env=bare | job | variables | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )

    def _srun(self) -> str:
        ends = "".join(f"*' {array} '*) exit {n} ;; " for array, n in self.statuses.items())
        return f'echo "$*" >>{self.folder}/sruns\ncase "$*" in {ends}esac'

    def _program(self, name: str, *lines: str) -> None:
        program = self.folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("\n".join(["#!/bin/bash", *lines, ""]))
        program.chmod(0o755)

    @property
    def sruns(self) -> list[str]:
        """The arguments of each call."""
        file = self.folder / "sruns"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def begun(self) -> list[tuple[str, int]]:
        """The cells that srun was called for."""
        words = [line.split() for line in self.sruns]
        return [(w[w.index("--array") + 1], int(w[w.index("--index") + 1])) for w in words]

    @property
    def requeued(self) -> str:
        file = self.folder / "scontrol"
        return file.read_text() if file.exists() else ""


def planned() -> Plan:
    return plan({"name": "run", "grids": [GRID]})


@pytest.fixture
def block(tmp_path: Path) -> Block:
    run = create_run_folder(planned(), tmp_path / "run", Launch(live=True), paired=True)
    lines = read_block_table(run.block_table("gat-paired"))
    block = Block(run, tmp_path, [(one.array, one.index) for one in lines if one.block == 1])
    block.ends_in(60.0)
    return block


def test_the_script_is_as_it_was() -> None:
    site = Site(partition="cpu", tasks_per_node=2, setup=("ulimit -c 0",), cpu_bind="cores")
    launch = Launch("cluster", site, python="/opt/python")
    (array,) = draw_blocks(planned().cells)
    text = render_script(array, Path("/runs/first"), needs_of(array, site), launch, home=HOME)
    compare("paired.sbatch", text)


def test_each_cell_runs_in_turn_on_the_first_nodes(block: Block) -> None:
    done = block.start(Site(tasks_per_node=2))
    assert done.returncode == 0, done.stderr
    assert block.begun == block.cells
    size = {
        "gat-seq": "--nodes=1 --ntasks=1 --ntasks-per-node=1 --relative=0",
        "gat-pp2": "--nodes=1 --ntasks=2 --ntasks-per-node=2 --relative=0",
        "gat-dp2-pp2": "--nodes=2 --ntasks=4 --ntasks-per-node=2 --relative=0",
    }
    assert all(
        size[array] in line for line, (array, _) in zip(block.sruns, block.cells, strict=True)
    )
    # What srun reads must not be the rest of the table.
    assert (block.folder / "stdin").read_text() == ""
    assert sorted(path.name for path in block.run.logs.iterdir()) == sorted(
        f"{array}-{index}-17.log" for array, index in block.cells
    )


@pytest.mark.parametrize(
    "ends", [{"gat-seq": 1}, {"gat-pp2": 2, "gat-dp2-pp2": 7}, {"gat-seq": 137}]
)
def test_a_cell_that_fails_does_not_stop_the_others(ends: dict[str, int], block: Block) -> None:
    block.statuses = ends
    done = block.start()
    assert block.begun == block.cells
    failed = [array for array, _ in block.cells if array in ends]
    assert done.returncode == ends[failed[0]]
    assert [f"{array} {index} ended with status {ends.get(array, 0)}" in done.stdout
            for array, index in block.cells] == [True] * 3  # fmt: skip


def test_after_ranks_that_were_told_to_stop_no_other_begins(block: Block) -> None:
    block.statuses = {block.cells[1][0]: 3}
    assert block.start().returncode == 3
    assert block.begun == block.cells[:2]


def test_a_block_told_to_end_begins_no_other(block: Block) -> None:
    # $$ is the job's shell, also where a cell's lines run.
    done = block.start(Site(setup=("kill -TERM $$",)))
    assert block.begun == block.cells[:1]
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("restarts", "told", "asked"),
    [
        ("0", "no time is left for", "requeue 17_1\n"),
        ("5", "requeued 5 times already, and max_requeues is 5", ""),
    ],
)
def test_without_time_the_block_is_requeued_before_a_cell(
    restarts: str, told: str, asked: str, block: Block
) -> None:
    block.ends_in(1.0)
    done = block.start(Site(signal=90), SLURM_RESTART_COUNT=restarts)
    assert done.returncode == 3
    assert told in done.stdout
    assert (block.begun, block.requeued) == ([], asked)


@pytest.mark.parametrize("words", ["EndTime=Unknown", "EndTime=2026-99-99T00:00:00", ""])
def test_a_job_whose_end_nobody_knows_goes_on(words: str, block: Block) -> None:
    block.end = f" {words} Deadline=N/A"
    done = block.start()
    assert done.returncode == 0
    assert (block.begun, block.requeued) == (block.cells, "")


def test_a_set_up_line_that_fails_is_the_cause_of_its_cell_alone(block: Block) -> None:
    done = block.start(Site(setup=('test "$array" != gat-pp2',)))
    assert done.returncode == 1
    assert block.begun == [cell for cell in block.cells if cell[0] != "gat-pp2"]
    failures = list(block.run.cells.glob("*/attempt-1/rank-0000.failure.json"))
    assert [path.parent.parent.name for path in failures] == [
        line.cell
        for line in read_block_table(block.run.block_table("gat-paired"))
        if (line.array, line.block) == ("gat-pp2", 1)
    ]
    record: dict[str, Any] = json.loads(failures[0].read_text())
    assert record["error"].startswith("set-up line 'test \"$array\" != gat-pp2' failed")


def test_what_a_line_sets_is_gone_with_its_cell(block: Block) -> None:
    setup = ('test -z "${SEEN:-}"', "export SEEN=yes", "cd /", "set -e")
    assert block.start(Site(setup=setup)).returncode == 0
    assert block.begun == block.cells


def test_a_block_that_is_not_in_the_table_is_refused(block: Block) -> None:
    done = block.start(SLURM_ARRAY_TASK_ID="12")
    assert done.returncode == 2
    assert "found no block 12 in" in done.stderr
    assert block.begun == []
