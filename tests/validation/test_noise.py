"""Flags of noise, drift and shared processors, from records of known noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.run_paths import AttemptPaths
from tests.tools.cells import manifest_of, run, vig
from tests.validation.attempts import Edit, Files, edited, faults, quiet

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> AttemptPaths:
    root = tmp_path_factory.mktemp("run")
    (cell,) = manifest_of(root, vig(layout="dp2", train_steps=16))
    ran = run(root, cell)
    assert ran.statuses == [0, 0], ran.err
    return ran.attempt


def even(files: Files) -> None:
    """Every step takes 0.2 s, of which forward is half, one right after the other."""
    quiet(files)
    files.result["ended_at"] = "2100-01-01T00:00:00+00:00"
    for rank in range(len(files.ranks)):
        for number, step in enumerate(files.steps(rank)):
            step.update(wall_s=0.2, forward_s=0.1, wait_s=0.1, cpu_s=0.2, data_s=0.0)
            step.update(backward_s=0.0, allreduce_s=0.0, optimizer_s=0.0, recompute_s=0.0)
            step["start_s"] = 0.201 * number


def of_each_step(**changes: float) -> Edit:
    def edit(files: Files) -> None:
        for step in files.every_step:
            step.update(changes)

    return edit


def processors(**changes: object) -> Edit:
    def edit(files: Files) -> None:
        for rank in range(len(files.ranks)):
            files.processors(rank, **changes)

    return edit


def waiting(**of_processors: object) -> Edit:
    def edit(files: Files) -> None:
        of_each_step(run_delay_s=0.04)(files)
        processors(**of_processors)(files)

    return edit


def other_jobs(**at: object) -> Edit:
    return lambda files: files.result["provenance"].update(other_jobs=at)


def slow_second_half(files: Files) -> None:
    for rank in range(len(files.ranks)):
        later = 0.0
        for step in files.steps(rank):
            step["start_s"] += later
            if step["phase"] == "train" and step["step"] >= 10:
                step.update(wall_s=0.3, forward_s=0.2)
                later += 0.1


def work_between_steps(files: Files) -> None:
    for step in files.every_step:
        step["start_s"] *= 9


FLAGS: dict[str, tuple[set[str], Edit]] = {
    "an idle machine": (set(), lambda files: None),
    "the host took time": ({"noisy"}, of_each_step(steal_s=0.02)),
    "other processes computed": ({"noisy"}, waiting(by_anybody_s=18.0)),
    "own threads took turns": (set(), waiting()),
    "nobody knows who computed": ({"noisy"}, waiting(seconds=0.0)),
    "steps became slower": ({"drift"}, slow_second_half),
    "one CPU for two ranks": ({"oversubscribed"}, processors(cpus=[0])),
    "threads set by somebody else": ({"threads"}, processors(threads=4)),
    "work between the steps": ({"between-steps"}, work_between_steps),
    "another job on the node": (
        {"shared-node"},
        other_jobs(start={"jobs": ["7"], "cpus": 4}, end=None),
    ),
    "CPUs given to a hidden job": ({"shared-node"}, other_jobs(start={"jobs": [], "cpus": 4})),
    "nodes of its own": (set(), other_jobs(end={"jobs": [], "cpus": 0})),
    "a Slurm that does not answer": (set(), other_jobs(start=None, end=None)),
}


@pytest.mark.parametrize("case", FLAGS)
def test_flags(attempt: AttemptPaths, tmp_path: Path, case: str) -> None:
    flags, edit = FLAGS[case]

    def both(files: Files) -> None:
        even(files)
        edit(files)

    assert faults(edited(attempt, tmp_path, both)).keys() == flags


def test_a_rank_waits_for_all_of_its_steps_at_most(attempt: AttemptPaths, tmp_path: Path) -> None:
    """Waiting is read outside of steps, and may be longer than these."""

    def edit(files: Files) -> None:
        even(files)
        of_each_step(run_delay_s=0.4)(files)
        processors(by_anybody_s=40.0)(files)

    assert "for 100.0% of its steps" in faults(edited(attempt, tmp_path, edit))["noisy"].detail
