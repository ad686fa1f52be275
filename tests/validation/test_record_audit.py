"""The audit names damaged records, noise and shared processors, and finds no fault in others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.validation.record_audit import audit_attempt
from tests.tools.cells import gat, manifest_of, run
from tests.validation.attempts import Edit, Files, edited, faults

pytestmark = pytest.mark.distributed
OF_MACHINE = {"noisy", "drift", "oversubscribed", "between-steps"}
"""Flags that a busy machine may raise."""


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> AttemptPaths:
    """Two replicas of two stages, with spans and an evaluation after every three steps."""
    root = tmp_path_factory.mktemp("run")
    (cell,) = manifest_of(
        root, gat(layout="dp2-pp2", microbatches=2, chunks="halo", spans=True, train_steps=18)
    )
    ran = run(root, cell)
    assert ran.statuses == [0, 0, 0, 0], ran.err
    return ran.attempt


def test_a_healthy_attempt_has_no_fault(attempt: AttemptPaths) -> None:
    checks = audit_attempt(attempt)
    assert len({check.name for check in checks}) == len(checks) > 10
    assert not faults(attempt).keys() - OF_MACHINE


def even(files: Files) -> None:
    """On an idle machine every step takes 0.2 s, of which forward is half, one after the other."""
    files.result["ended_at"] = "2100-01-01T00:00:00+00:00"
    for rank in range(len(files.ranks)):
        files.processors(rank)
        for number, step in enumerate(files.steps(rank)):
            step.update(wall_s=0.2, forward_s=0.1, wait_s=0.1, cpu_s=0.2, data_s=0.0)
            step.update(backward_s=0.0, allreduce_s=0.0, optimizer_s=0.0, recompute_s=0.0)
            step.update(steal_s=0.0, run_delay_s=0.0, start_s=0.201 * number)


def header(of_rank: int, /, **changes: object) -> Edit:
    return lambda files: files.ranks[of_rank][0].update(changes)


def step(rank: int, number: int, /, **changes: object) -> Edit:
    return lambda files: files.steps(rank)[number].update(changes)


def result(**changes: object) -> Edit:
    return lambda files: files.result.update(changes)


def machine(of_each_step: dict[str, float], **processors: object) -> Edit:
    """Other values of each step, and other ones in each rank's record of its processors."""

    def edit(files: Files) -> None:
        for step in files.every_step:
            step.update(of_each_step)
        for rank in range(len(files.ranks)):
            files.processors(rank, **processors)

    return edit


def other_jobs(**at: object) -> Edit:
    return lambda files: files.result["provenance"].update(other_jobs=at)


def step_twice(files: Files) -> None:
    for rank, lines in enumerate(files.ranks):
        last = files.steps(rank)[-1]
        files.ranks[rank] = [*lines, last | {"start_s": last["start_s"] + last["wall_s"]}]


def faster_clock(files: Files) -> None:
    for line in files.steps(1):
        for name in ("wall_s", "forward_s", "wait_s", "start_s"):
            line[name] *= 100


def slow_second_half(files: Files) -> None:
    for rank in range(len(files.ranks)):
        later = 0.0
        for step in files.steps(rank):
            step["start_s"] += later
            if step["phase"] == "train" and step["step"] >= 11:
                step.update(wall_s=0.3, forward_s=0.2)
                later += 0.1


def work_between_steps(files: Files) -> None:
    for step in files.every_step:
        step["start_s"] *= 9


def without_kernels(files: Files) -> None:
    kernels = {"aggregate": "none: no C++ compiler found"}
    for lines in files.ranks:
        lines[0].update(implementation="fused/torch", kernels=kernels)


def graphs_of(**detail: str) -> Edit:
    """As rank 1 on a GPU records them."""
    event = {"kind": "event", "name": "cuda graph", "at_s": 0.0, "detail": detail}
    return lambda files: files.ranks[1].append(event)


WAITING = {"run_delay_s": 0.04}
Case = tuple[str | None, str, Edit]
"""The name of the check that is not passed, if any, a part of its cause, and the edit."""
CASES: dict[str, Case] = {
    "an idle machine": (None, "", lambda files: None),
    "a rank with other code": ("same code", "code", header(1, code="0123456789abcdef")),
    "a rank with another torch": ("same code", "torch", header(2, versions={"torch": "1.0"})),
    "a rank with other kernels": ("same code", "", header(3, implementation="reference")),
    "a rank with other instructions": ("same code", "", header(1, cpu_capability="NO AVX")),
    "a step twice": ("step counts", "planned is none", step_twice),
    "steps in another order": ("step counts", "rank 0", step(0, 1, step=0)),
    "a negative part": ("step times", "", step(0, 1, wait_s=-1.0, forward_s=1.2)),
    "parts that do not add up": ("step times", "add up", step(0, 1, wait_s=0.2)),
    "a step before the last one's end": ("step times", "", step(0, 3, start_s=0.0)),
    "steps longer than the attempt": ("step times", "", step(0, -1, start_s=1e10)),
    "a rank with a faster clock": ("barriers", "rank 1", faster_clock),
    "a missing value": ("records", "", lambda files: files.steps(0)[1].pop("wall_s")),
    "text for a number": ("records", "", step(0, 1, wall_s="0.1")),
    "edges lost": ("edges-lost", "", lambda f: f.result["graph"].update(edges_kept=0.9)),
    "no compiler": ("plain-torch", "no C++ compiler found", without_kernels),
    "steps that no graph could have": (
        *("not-replayed", "rank 1: train steps are not replayed (the layer waits)"),
        graphs_of(train="eager: the layer waits", test="replayed 8 times"),
    ),
    "steps that no graph should have": (None, "", graphs_of(all="eager: cuda_graph is off")),
    "a warm-up step that compiled": (None, "", step(1, 0, compilations=2)),
    "a measured step that compiled": (
        *("recompiled", "rank 1: torch compiled layers 2 times in 1 measured steps"),
        step(1, -1, compilations=2),
    ),
    "the host took time": ("noisy", "", machine({"steal_s": 0.02})),
    "other processes computed": ("noisy", "", machine(WAITING, by_anybody_s=18.0)),
    # Waiting is read outside of steps, and may be longer than these.
    "a rank waited for all of its steps": (
        *("noisy", "for 100.0% of its steps"),
        machine({"run_delay_s": 0.4}, by_anybody_s=40.0),
    ),
    "own threads took turns": (None, "", machine(WAITING)),
    "nobody knows who computed": ("noisy", "", machine(WAITING, seconds=0.0)),
    "steps became slower": ("drift", "", slow_second_half),
    "one CPU for all ranks": ("oversubscribed", "", machine({}, cpus=[0])),
    "threads set by somebody else": ("threads", "", machine({}, threads=4)),
    "work between the steps": ("between-steps", "", work_between_steps),
    "another job on the node": (
        *("shared-node", "7"),
        other_jobs(start={"jobs": ["7"], "cpus": 4}, end=None),
    ),
    "CPUs of a hidden job": ("shared-node", "", other_jobs(start={"jobs": [], "cpus": 4})),
    "nodes of its own": (None, "", other_jobs(end={"jobs": [], "cpus": 0})),
    "a Slurm that does not answer": (None, "", other_jobs(start=None, end=None)),
}
FLAGS = OF_MACHINE | {"edges-lost", "plain-torch", "not-replayed", "recompiled", "shared-node"}


@pytest.mark.parametrize("name", CASES)
def test_damage_and_noise_are_named(attempt: AttemptPaths, tmp_path: Path, name: str) -> None:
    check, cause, edit = CASES[name]

    def both(files: Files) -> None:
        even(files)
        edit(files)

    found = faults(edited(attempt, tmp_path, both))
    assert found.keys() == ({check} if check else set())
    if check:
        assert found[check].verdict == ("suspect" if check in FLAGS else "invalid")
        assert cause in found[check].detail


def test_files_that_change_later_are_found(attempt: AttemptPaths, tmp_path: Path) -> None:
    paths = edited(attempt, tmp_path, lambda files: None)
    text = paths.records(1).read_text()
    for other, cause in (
        (text.replace('"epoch": 0', '"epoch": 7', 1), "rank-0001.jsonl changed since"),
        (text[: len(text) // 2], f"has {len(text) // 2} bytes of {len(text)}"),
        (None, "rank-0001.jsonl is unreadable"),
    ):
        paths.records(1).write_text(other) if other else paths.records(1).unlink()
        assert cause in faults(paths)["records"].detail
    paths.result.write_text(paths.result.read_text().replace('"attempt": 1', '"attempt": 2'))
    assert "changed since it was written" in faults(paths)["records"].detail


def test_attempts_that_are_not_done_are_not_audited(attempt: AttemptPaths, tmp_path: Path) -> None:
    paths = edited(attempt, tmp_path, result(status="interrupted"))
    assert audit_attempt(paths) == []
    paths.result.unlink()
    assert audit_attempt(paths) == []


def test_resumed_attempts_count_from_their_checkpoint(
    attempt: AttemptPaths, tmp_path: Path
) -> None:
    """An attempt that resumes at step 3 has the steps from there on, and the second evaluation."""

    def is_later(line: dict[str, object]) -> bool:
        first = 3 if line["phase"] == "train" else 2
        return isinstance(line["step"], int) and line["step"] >= first

    def resumed(files: Files) -> None:
        files.result["resumed_from"] = {"attempt": 1, "step": 3}
        for rank, lines in enumerate(files.ranks):
            kept = [x for x in lines if x["kind"] not in ("step", "span") or is_later(x)]
            files.ranks[rank] = kept

    assert not faults(edited(attempt, tmp_path, resumed)).keys() - OF_MACHINE
