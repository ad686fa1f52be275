"""The audit finds damaged records by the check that names the damage, and no fault in others."""

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
    """Two replicas of two stages, with spans and two evaluations."""
    root = tmp_path_factory.mktemp("run")
    (cell,) = manifest_of(root, gat(layout="dp2-pp2", microbatches=2, chunks="halo", spans=True))
    ran = run(root, cell)
    assert ran.statuses == [0, 0, 0, 0], ran.err
    return ran.attempt


def test_a_healthy_attempt_has_no_fault(attempt: AttemptPaths) -> None:
    checks = audit_attempt(attempt)
    assert len({check.name for check in checks}) == len(checks) > 10
    assert not faults(attempt).keys() - OF_MACHINE


def double_step(files: Files) -> None:
    for rank, lines in enumerate(files.ranks):
        files.ranks[rank] = [*lines, files.steps(rank)[-1]]


def scale_rank(files: Files) -> None:
    for line in files.ranks[1]:
        for name in line.keys() & {"wall_s", "forward_s", "backward_s", "allreduce_s", "wait_s"}:
            line[name] *= 100
        for name in line.keys() & {"optimizer_s", "recompute_s", "start_s", "end_s", "run_delay_s"}:
            line[name] *= 100 if name != "run_delay_s" else 0


def header(of_rank: int, /, **changes: object) -> Edit:
    return lambda files: files.ranks[of_rank][0].update(changes)


def step(rank: int, number: int, /, **changes: object) -> Edit:
    return lambda files: files.steps(rank)[number].update(changes)


def result(**changes: object) -> Edit:
    return lambda files: files.result.update(changes)


DAMAGES: dict[str, tuple[str, Edit]] = {
    "a rank with other code": ("same code", header(1, code="0123456789abcdef")),
    "a rank with another torch": ("same code", header(2, versions={"torch": "1.0"})),
    "a rank with other kernels": ("same code", header(3, implementation="reference")),
    "a rank with other instructions": ("same code", header(1, cpu_capability="NO AVX")),
    "a step twice": ("step counts", double_step),
    "steps in another order": ("step counts", step(0, 1, step=0)),
    "a negative part": ("step times", step(0, 1, wait_s=-1.0)),
    "a step before the last one's end": ("step times", step(0, 3, start_s=0.0)),
    "steps longer than the attempt": ("step times", step(0, -1, start_s=1e4)),
    "a rank with a faster clock": ("barriers", scale_rank),
    "a missing value": ("records", lambda files: files.steps(0)[1].pop("wall_s")),
    "text for a number": ("records", step(0, 1, wall_s="0.1")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(attempt: AttemptPaths, tmp_path: Path, damage: str) -> None:
    name, edit = DAMAGES[damage]
    found = faults(edited(attempt, tmp_path, edit))
    assert name in found
    assert found[name].verdict == "invalid"
    assert found[name].detail


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


def without_kernels(files: Files) -> None:
    kernels = {"aggregate": "none: no C++ compiler found"}
    for lines in files.ranks:
        lines[0].update(implementation="fused/torch", kernels=kernels)


@pytest.mark.parametrize(
    ("name", "edit", "cause"),
    [
        ("edges-lost", lambda files: files.result["graph"].update(edges_kept=0.9), ""),
        ("plain-torch", without_kernels, "no C++ compiler found"),
    ],
    ids=["edges-lost", "plain-torch"],
)
def test_flags(attempt: AttemptPaths, tmp_path: Path, name: str, edit: Edit, cause: str) -> None:
    found = faults(edited(attempt, tmp_path, edit))[name]
    assert found.verdict == "suspect"
    assert cause in found.detail


def test_a_measured_step_that_compiled_is_a_flag(attempt: AttemptPaths, tmp_path: Path) -> None:
    """What compiles in warm-up steps is left out of averages anyway."""

    def compile_in(step: int) -> Edit:
        return lambda files: files.steps(1)[step].update(compilations=2)

    assert "recompiled" not in faults(edited(attempt, tmp_path / "warm-up", compile_in(0)))
    found = faults(edited(attempt, tmp_path / "measured", compile_in(-1)))["recompiled"]
    assert found.verdict == "suspect"
    assert "rank 1: torch compiled layers 2 times in 1 measured steps" in found.detail


def test_attempts_that_are_not_done_are_not_audited(attempt: AttemptPaths, tmp_path: Path) -> None:
    paths = edited(attempt, tmp_path, result(status="interrupted"))
    assert audit_attempt(paths) == []
    paths.result.unlink()
    assert audit_attempt(paths) == []


def test_warm_and_resumed_attempts_count_from_their_checkpoint(
    attempt: AttemptPaths, tmp_path: Path
) -> None:
    """An attempt that resumes at step 3 has the steps from there on, and the second evaluation."""

    def resumed(files: Files) -> None:
        files.result["resumed_from"] = {"attempt": 1, "step": 3}
        for rank, lines in enumerate(files.ranks):
            kept = [x for x in lines if x["kind"] not in ("step", "span") or _is_later(x)]
            files.ranks[rank] = kept
            for phase in ("train", "test"):
                steps = [each for each in files.steps(rank) if each["phase"] == phase]
                for number, each in enumerate(steps):
                    each |= {"warmup": number < 2, "profiled": False}

    def _is_later(line: dict[str, object]) -> bool:
        first = 3 if line["phase"] == "train" else 2
        return isinstance(line["step"], int) and line["step"] >= first

    assert not faults(edited(attempt, tmp_path, resumed)).keys() - OF_MACHINE
