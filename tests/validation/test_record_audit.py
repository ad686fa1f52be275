"""The audit finds damaged records by the check that names the damage, and no fault in others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.validation.record_audit import audit_attempt
from tests.tools.cells import gat, manifest_of, run, sampled
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


def test_a_copy_without_a_change_has_no_fault(attempt: AttemptPaths, tmp_path: Path) -> None:
    assert not faults(edited(attempt, tmp_path, lambda files: None)).keys() - OF_MACHINE


def double_step(files: Files) -> None:
    for rank, lines in enumerate(files.ranks):
        files.ranks[rank] = [*lines, files.steps(rank)[-1]]


def scale_rank(files: Files) -> None:
    for line in files.ranks[1]:
        for name in line.keys() & {"wall_s", "forward_s", "backward_s", "allreduce_s", "wait_s"}:
            line[name] *= 100
        for name in line.keys() & {"optimizer_s", "recompute_s", "start_s", "end_s", "run_delay_s"}:
            line[name] *= 100 if name != "run_delay_s" else 0


def shift_span(files: Files) -> None:
    span = files.of_kind(0, "span")[0]
    span["end_s"] += 1000.0


def lengthen_span(files: Files) -> None:
    span = next(each for each in files.of_kind(0, "span") if each["name"] == "forward")
    span["start_s"] -= 0.5 * span["end_s"] + 1e-3


def exchange_actions(files: Files) -> None:
    forwards = [each for each in files.of_kind(0, "span") if each["name"] == "forward"]
    first, second = forwards[:2]
    first["microbatch"], second["microbatch"] = second["microbatch"], first["microbatch"]


def header(of_rank: int, /, **changes: object) -> Edit:
    return lambda files: files.ranks[of_rank][0].update(changes)


def step(rank: int, number: int, /, **changes: object) -> Edit:
    return lambda files: files.steps(rank)[number].update(changes)


def result(**changes: object) -> Edit:
    return lambda files: files.result.update(changes)


def moved(rank: int, source: str, target: str) -> Edit:
    """Seconds counted as another part, without a change of the sum."""

    def edit(files: Files) -> None:
        line = files.steps(rank)[0]
        line[target] += line[source]
        line[source] = 0.0

    return edit


DAMAGES: dict[str, tuple[str, Edit]] = {
    "a rank with other code": ("same code", header(1, code="0123456789abcdef")),
    "a rank with another torch": ("same code", header(2, versions={"torch": "1.0"})),
    "a rank with other kernels": ("same code", header(3, implementation="reference")),
    "a rank with other instructions": ("same code", header(1, cpu_capability="NO AVX")),
    "a host with another CPU": ("same code", header(1, cpu_model="another")),
    "the file of another cell": ("headers", header(1, cell="another")),
    "the file of another rank": ("headers", header(1, rank=0)),
    "a rank of another stage": ("headers", header(1, stage=0)),
    "hosts that are not the ranks'": ("headers", header(0, host="elsewhere")),
    "a missing step": ("step counts", lambda files: files.ranks[0].remove(files.steps(0)[2])),
    "a step twice": ("step counts", double_step),
    "steps in another order": ("step counts", step(0, 1, step=0)),
    "fewer steps in the result": ("step counts", result(train_steps=3)),
    "a negative part": ("step times", step(0, 1, wait_s=-1.0)),
    "a time that is no number": ("step times", step(0, 1, wall_s=math.nan)),
    "negative memory": ("step times", step(0, 1, peak_rss_mib=-1.0)),
    "a shorter step than its parts": ("step times", step(0, 1, wall_s=1e-5)),
    "a step before the last one's end": ("step times", step(0, 3, start_s=0.0)),
    "steps longer than the attempt": ("step times", step(0, -1, start_s=1e4)),
    "recomputing for longer than a backward": ("step times", step(0, 1, recompute_s=1e3)),
    "a span outside of its step": ("spans", shift_span),
    "a span longer than its part": ("spans", lengthen_span),
    "two actions in another order": ("schedule", exchange_actions),
    "a backward that is booked as forward": ("spans", moved(0, "backward_s", "forward_s")),
    "a rank with a faster clock": ("barriers", scale_rank),
    "replicas with different losses": ("losses", step(3, 2, loss=0.5)),
    "a replica without a loss": ("losses", step(3, 2, loss=None)),
    "a loss that is not finite": ("losses", step(3, 2, loss=math.inf)),
    "stages with other samples": ("throughput", step(1, 2, samples=3)),
    "more samples in the result": ("throughput", result(samples_per_step=10**6)),
    "a rank with more threads": ("threads", header(1, threads=7)),
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


@pytest.mark.parametrize("name", ["hosts", "code", "versions", "threads"])
def test_what_a_result_does_not_say_is_unknown(
    attempt: AttemptPaths, tmp_path: Path, name: str
) -> None:
    paths = edited(attempt, tmp_path, lambda files: files.result["provenance"].pop(name))
    checks = {check.name: check for check in audit_attempt(paths)}
    check = checks["threads" if name == "threads" else "headers"]
    assert (check.verdict, name in check.detail) == ("unknown", True)


def test_both_values_are_named_where_ranks_differ(attempt: AttemptPaths, tmp_path: Path) -> None:
    found = faults(edited(attempt, tmp_path, header(1, cpu_capability="NO AVX")))["same code"]
    assert "rank 1 on" in found.detail
    assert "has cpu_capability NO AVX, rank 0 on" in found.detail


def test_lost_edges_are_a_flag(attempt: AttemptPaths, tmp_path: Path) -> None:
    paths = edited(attempt, tmp_path, lambda f: f.result["graph"].update(edges_kept=0.9))
    assert faults(paths)["edges-lost"].verdict == "suspect"


def test_attempts_that_are_not_done_are_not_audited(attempt: AttemptPaths, tmp_path: Path) -> None:
    paths = edited(attempt, tmp_path, result(status="interrupted"))
    assert audit_attempt(paths) == []
    paths.result.unlink()
    assert audit_attempt(paths) == []


def test_samples_of_the_last_mini_batch_are_fewer(tmp_path: Path) -> None:
    (cell,) = manifest_of(tmp_path / "run", sampled(train_steps=9))
    ran = run(tmp_path / "run", cell)
    assert not faults(ran.attempt).keys() - OF_MACHINE
    samples = [step["samples"] for step in ran.steps(0, "train")]
    assert min(samples) < max(samples)
    last = samples.index(min(samples))
    wrong = edited(ran.attempt, tmp_path / "wrong", step(0, last, samples=max(samples)))
    assert "throughput" in faults(wrong)


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
