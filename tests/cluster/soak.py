"""Short cells under random faults: python -m tests.cluster.soak [--seed N] [--minutes N] [--drawn].

The same sweep is run twice on the test cluster: once in peace, once while ranks are killed, jobs
requeued, also such as are done, and nodes drained at random, then rerun until it is done. Both must
come out equal in everything but times. Sixty cells, a quarter of them in paired blocks, which take
about 20 minutes on two cores. With --drawn they are of mini-batches that are drawn: nodes and links
of a sampled graph, and small graphs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from jobs.folder.attempt_files import read_attempt_process

from gnnhpc.records.schema import Result, read_lines
from tests.cluster import config, slurm
from tests.cluster.processes import Process
from tests.cluster.runs import TINY_GAT, TINY_VIG, Run, User, steps, wait_for
from tests.cluster.slurm import Cluster

HOUR_S = 3600.0
STEPS = 120
CELLS_A_MINUTE = 3
"""On two cores, with both runs of a cell and all its attempts."""
BETWEEN_S = (2.0, 8.0)
"""Seconds between two faults, at least and at most."""


Grids = list[dict[str, object]]


def grids(cells: int) -> Grids:
    """`cells` cells in four arrays: both models, one process and two."""
    pipelines = {"layouts": ["seq", "pp2"], "microbatches": [2], "seq_microbatches": [2]}
    shared = pipelines | _steps(cells, arrays=4)
    return [TINY_VIG | shared, TINY_GAT | shared]


def drawn_grids(cells: int) -> Grids:
    """`cells` cells in six arrays: sampled nodes and links, and small graphs, on 1 and 2 ranks."""
    shared = {"layouts": ["seq", "dp2"], "batch_size": 8} | _steps(cells, arrays=6)
    sampled = {"sampling": {"fanouts": [4, 3]}, "data": TINY_GAT["data"]}
    return [
        {"model": {"name": "sage", "layers": 2, "hidden": 8}} | sampled | shared,
        {"model": {"name": "gcn", "layers": 2, "hidden": 8}, "task": LINKS} | sampled | shared,
        {"model": {"name": "gin", "layers": 2, "hidden": 8}, "data": SMALL_GRAPHS} | shared,
    ]


LINKS = {"name": "links", "embedding": 4}
SMALL_GRAPHS = {"name": "synthetic-graphs", "graphs": 100}


def _steps(cells: int, arrays: int) -> dict[str, object]:
    every = {"train_steps": STEPS, "test_steps": 1, "save_every": 20}
    return every | {"repeats": -(-cells // arrays)}


class Troublemaker:
    """Plants one random fault at a time in what runs."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.drained: list[str] = []

    def act(self) -> None:
        faults = [self.kill_rank, self.kill_rank, self.requeue, self.requeue_done, self.drain]
        fault = self.random.choice(faults)
        if fault():
            self.done[fault.__name__] += 1

    def kill_rank(self) -> bool:
        """SIGKILL to a rank of an attempt that has no result yet."""
        ranks = []
        for cell in self.run.cells:
            for attempt in self.run.paths.cell(cell.id).attempts():
                if not attempt.result.exists():
                    ranks += sorted(attempt.root.glob("rank-*.jsonl"))
        if not ranks:
            return False
        with contextlib.suppress(IndexError, KeyError):
            process = Process.of(read_lines(self.random.choice(ranks))[0]["pid"])
            if process in slurm.all_processes(self.run.cluster.root):
                assert process is not None
                process.send(signal.SIGKILL)
                return True
        return False

    def requeue(self) -> bool:
        queue = ("squeue", "-h", "-r", "-t", "RUNNING", "-o", "%F_%K")
        jobs = self.run.cluster.run(*queue).stdout.split()
        if not jobs:
            return False
        return self._requeue(self.random.choice(jobs))

    def requeue_done(self) -> bool:
        """The job of an attempt that has its result, whether or not the job has ended by now."""
        attempts = [
            attempt
            for cell in self.run.cells
            for attempt in self.run.paths.cell(cell.id).attempts()
            if attempt.result.exists()
        ]
        done = [one for one in map(read_attempt_process, attempts) if one and one.job]
        if not done:
            return False
        return self._requeue(str(self.random.choice(done).job))

    def _requeue(self, job: str) -> bool:
        return self.run.cluster.run("scontrol", "requeue", job, check=False).returncode == 0

    def drain(self) -> bool:
        """One node at a time takes no new cells until the next is chosen."""
        self.resume()
        node = self.random.choice(config.NODES)
        command = ("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=soak")
        self.run.cluster.run(*command)
        self.drained.append(node)
        return True

    def resume(self) -> None:
        for node in self.drained:
            command = ("scontrol", "update", f"NodeName={node}", "State=RESUME")
            self.run.cluster.run(*command, check=False)
        self.drained.clear()


def expedite(run: Run) -> None:
    """Requeued jobs would wait two minutes each; but see `test_interruptions.expedite`."""
    shown = run.cluster.run("squeue", "-h", "-r", "-t", "PENDING", "-o", "%F_%K|%r").stdout
    lines = [line.partition("|") for line in shown.splitlines()]
    held = [job for job, _, reason in lines if reason == "BeginTime"]
    if held:
        time.sleep(1)
    for job in held:
        run.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)


def settled(run: Run) -> bool:
    """Whether nothing is queued; what waits for its requeue goes at once."""
    expedite(run)
    return idle(run)


def idle(run: Run) -> bool:
    return not run.cluster.run("squeue", "-h").stdout.strip()


def disturb(run: Run, seed: int) -> Counter[str]:
    """Faults until the queue is empty; returns how many of each kind there were."""
    trouble = Troublemaker(run, seed)
    while not idle(run):
        time.sleep(trouble.random.uniform(*BETWEEN_S))
        trouble.act()
        expedite(run)
    trouble.resume()
    return trouble.done


def unfinished(run: Run) -> int:
    states = Counter(cell["state"] for cell in run.status().values())
    say(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return sum(states.values()) - states["done"]


def finish(run: Run) -> None:
    """`rerun --missing` until every cell is done."""
    for _ in range(10):
        if not unfinished(run):
            return
        run.user.jobs("rerun", run.paths.root, "--missing", *run.user.site({}))
        wait_for(lambda: settled(run), "the rerun cells to end", HOUR_S)
    raise AssertionError("ten reruns were not enough")


def outcome(run: Run, cell_id: str) -> Result:
    """The one valid result of a cell; every attempt's records are whole and in order."""
    valid = []
    for attempt in run.paths.cell(cell_id).attempts():
        if attempt.result.exists():
            result = Result.read(attempt.result)
            if result.valid:
                valid.append((attempt, result))
        for file in attempt.root.glob("rank-*.jsonl"):
            numbers = [line["step"] for line in steps(attempt, int(file.stem[-4:]))]
            first = numbers[0] if numbers else 0
            assert numbers == list(range(first, first + len(numbers))), file
    assert len(valid) == 1, f"{cell_id} has {len(valid)} valid attempts"
    attempt, result = valid[0]
    start = result.resumed_from["step"] if result.resumed_from else 0
    for rank in range(result.layout["world_size"]):
        assert [line["step"] for line in steps(attempt, rank)] == list(range(start, STEPS))
    return result


def report(run: Run) -> list[str]:
    """The report's summary, without the columns that are times or follow from them."""
    run.cluster.run(sys.executable, "-m", "analysis", "report", run.paths.root, timeout=600)
    with (run.paths.report / "summary.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    kept = ("model", "data", "layout", "stages", "replicas", "microbatches", "phase")
    return [" ".join(row[name] for name in kept) for row in rows]


def soak(cluster: Cluster, home: Path, cells: Grids, seed: int, *flags: str) -> None:
    peace, war = home / "peace", home / "war"
    for folder in (peace, war):
        folder.mkdir(parents=True)
    calm = User(cluster, peace).submit(cells, *flags, name="calm")
    say(f"{len(calm.cells)} cells in peace")
    wait_for(lambda: idle(calm), "the undisturbed sweep", HOUR_S)
    assert not unfinished(calm)
    stormy = User(cluster, war).submit(cells, *flags, name="stormy")
    say(f"the same under fire, seed {seed}")
    faults = disturb(stormy, seed)
    say(", ".join(f"{count} x {name}" for name, count in sorted(faults.items())))
    finish(stormy)
    for cell in calm.cells:
        quiet, loud = outcome(calm, cell.id), outcome(stormy, cell.id)
        assert quiet.final == loud.final, f"{cell.id}: {quiet.final} != {loud.final}"
        assert (quiet.train_steps, quiet.test_steps) == (loud.train_steps, loud.test_steps)
    assert report(calm) == report(stormy)
    daemons = set(slurm.daemons(cluster.root))
    wait_for(lambda: set(slurm.all_processes(cluster.root)) <= daemons, "all ranks to be gone", 60)
    attempts = sum(len(stormy.paths.cell(cell.id).attempts()) for cell in stormy.cells)
    say(f"{len(stormy.cells)} cells in {attempts} attempts, each with one valid result: equal")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which faults, where and when")
    parser.add_argument("--minutes", type=int, default=20, help="about how long, on two cores")
    parser.add_argument("--drawn", action="store_true", help="cells whose mini-batches are drawn")
    options = parser.parse_args(arguments)
    of_cells = drawn_grids if options.drawn else grids
    root = Path(tempfile.mkdtemp(prefix=slurm.PREFIX))
    home = Path(tempfile.mkdtemp(prefix="gnnhpc-soak-"))
    cluster = slurm.start(root, owner=os.getpid())
    try:
        cells = options.minutes * CELLS_A_MINUTE
        soak(cluster, home / "arrays", of_cells(cells * 3 // 4), options.seed)
        soak(cluster, home / "blocks", of_cells(max(4, cells // 4)), options.seed, "--paired")
    except AssertionError as error:
        print(f"failed: {error}; the runs are kept in {home}", file=sys.stderr)
        return 1
    finally:
        slurm.stop(root)
        shutil.rmtree(root)
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
