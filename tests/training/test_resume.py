"""Interrupted and gone on with: bitwise what nobody interrupted, from the right checkpoint."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from gnnhpc.check import audit as audit_module
from gnnhpc.run.look_back import LookBack
from torch import Tensor

import analysis
from gnnhpc.core.balance import stage_slices
from gnnhpc.core.errors import EXIT_DONE, EXIT_UNFINISHED, GnnhpcError, InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed import signals
from gnnhpc.distributed.environment import SIGNAL_VARIABLE
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.context import Context
from gnnhpc.records.content_digest import with_digest
from gnnhpc.records.resume import (
    CHECKPOINT_VERSION,
    FRESH_VARIABLE,
    digests,
    find_resume_point,
    read_checkpoint,
)
from gnnhpc.records.run_paths import AttemptPaths, CellPaths, RunPaths
from gnnhpc.records.schema import Check, read_lines
from gnnhpc.records.so_far import SoFar
from gnnhpc.records.writer import Written
from gnnhpc.run.worker import Worker
from gnnhpc.training.checkpoint import load
from gnnhpc.training.setup import TrainingParts, set_up
from tests.records.test_schema import RESULT
from tests.tools.cells import Ran, gat, manifest_of, run, sampled, vig

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

STEPS = {"train_steps": 30, "test_steps": 1, "test_every": 29, "save_every": 29}
CELLS = {
    "vig": vig(layout="pp2", schedule="1f1b", batchnorm="deferred", **STEPS),
    "gat": gat(layout="dp2-pp2", microbatches=2, **STEPS),
    "gat in parts": gat(
        layout="pp2", microbatches=2, schedule="interleaved", virtual_stages=2, **STEPS
    ),
    "gat there and back": gat(layout="pp2", microbatches=3, schedule="zbv", **STEPS),
    "vig in replicas": vig(layout="dp2", microbatches=2, **STEPS),
    "sampled in replicas": sampled(layout="dp2", batch_size=12, microbatches=2, **STEPS),
}


def warn_at(*steps: int, which: str = "SIGUSR2", rank: int = 1) -> None:
    """A rank is sent what a site sends ahead of a time limit, in these training steps.

    Far ahead: however slow this machine is, there is time for the checks of an end.
    """
    os.environ[SIGNAL_VARIABLE] = "600"
    forward = Stage.forward

    def planted(self: Stage, x: Tensor, context: Context) -> Tensor:
        here = os.environ["RANK"] == str(rank) and self.training
        if here and context.microbatch == 0 and context.step in steps:
            os.kill(os.getpid(), signal.Signals[which])
        return forward(self, x, context)

    Stage.forward = planted  # type: ignore[method-assign]


Runs = tuple[Ran, list[Ran]]


QUICK = ("gat",)
PARAMS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CELLS]


@pytest.fixture(scope="module", params=PARAMS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The same cell twice: whole, and in three attempts."""
    experiment = CELLS[request.param]
    whole, parts = (tmp_path_factory.mktemp(name) for name in ("whole", "parts"))
    plant = functools.partial(warn_at, 5, 17)
    cell = manifest_of(parts, experiment)[0]
    attempts = [run(parts, cell, plant=plant) for _ in range(3)]
    return run(whole, manifest_of(whole, experiment)[0]), attempts


def tensors(path: Path) -> dict[str, Tensor]:
    """All that a checkpoint holds, by name."""
    known = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {name: torch.empty(t.size, dtype=t.properties.dtype) for name, t in known.items()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


@pytest.mark.quick("gat")
@pytest.mark.distributed
def test_attempts_end_as_interrupted_and_then_done(both: Runs) -> None:
    _, attempts = both
    ranks = attempts[0].cell.experiment.layout.world_size
    assert [a.statuses for a in attempts] == [
        [EXIT_UNFINISHED] * ranks,
        [EXIT_UNFINISHED] * ranks,
        [EXIT_DONE] * ranks,
    ]
    results = [a.result for a in attempts]
    assert [r.status for r in results] == ["interrupted", "interrupted", "done"]
    assert results[-1].valid
    assert 5 < results[0].train_steps < 17 < results[1].train_steps < 29
    assert results[0].resumed_from is None
    for before, after in pairwise(results):
        assert after.resumed_from == {
            "attempt": before.attempt,
            "step": before.train_steps,
            "tested": 0,
        }


@pytest.mark.distributed
def test_a_checkpoint_says_what_it_was_computed_with(both: Runs) -> None:
    _, attempts = both
    provenance = attempts[0].result.provenance
    for ran in attempts:
        (newest,) = sorted(ran.attempt.checkpoints.iterdir())[-1:]
        made = json.loads((newest / "facts.json").read_text())["written_by"]
        assert made["code"] == provenance["code"]
        assert made["versions"].items() <= provenance["versions"].items()
        assert [facts["threads"] for facts in made["ranks"]] == [
            facts["threads"] for facts in provenance["ranks"]
        ]
        assert ran.result.provenance["passed_over"] == []


@pytest.mark.distributed
def test_the_result_has_the_digests_of_all_files_that_count(both: Runs, tmp_path: Path) -> None:
    _, attempts = both
    ranks = range(attempts[0].cell.experiment.layout.world_size)
    own = {f"rank-{rank:04}.jsonl" for rank in ranks}
    earlier = {f"../attempt-{number}/{name}" for number in (1, 2) for name in own}
    assert attempts[-1].result.records.keys() == own | earlier
    root = tmp_path / "copy"
    shutil.copytree(attempts[0].attempt.root.parents[2], root)
    assert analysis.load_run(root).cells["counts"].all()
    path = RunPaths(root).cell(attempts[0].cell.id).attempt(1).records(0)
    text = path.read_text()
    (first, *_) = [line for line in read_lines(path) if line["kind"] == "step"]
    path.write_text(text.replace(str(first["cpu_s"]), str(first["cpu_s"] / 2), 1))
    (damaged,) = analysis.load_run(root).checks.query("name == 'damaged'")["detail"]
    assert f"{path}: content: found changed since it was written" in damaged


def disturbed() -> None:
    """An attempt in which a check suspects something, and that is stopped."""
    warn_at(17)
    check = Worker._check_so_far

    def planted(self: Worker, *args: Any) -> list[Check]:
        return [*check(self, *args), Check("gradients used", "suspect", "none of one")]

    Worker._check_so_far = planted  # type: ignore[method-assign]


def wrong_from_step_6_on() -> None:
    """In each stage, a little, which no look at a step of the run can tell; stopped in step 17."""
    warn_at(17)
    forward = Stage.forward

    def planted(self: Stage, x: Tensor, context: Context) -> Tensor:
        return forward(self, x, context) * (1.01 if context.step > 5 else 1.0)

    Stage.forward = planted  # type: ignore[method-assign]


def killed_in_step(step: int) -> None:
    forward = Stage.forward

    def planted(self: Stage, x: Tensor, context: Context) -> Tensor:
        if os.environ["RANK"] == "1" and self.training and context.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, x, context)

    Stage.forward = planted  # type: ignore[method-assign]


def looked_back(how: Callable[[], None], which: str = "SIGUSR2") -> None:
    """An attempt that a signal stops in step 5, and whose last checks do this on rank 1."""
    warn_at(5, which=which)
    before = LookBack.before

    def planted(self: LookBack, *args: Any) -> Any:
        if os.environ["RANK"] == "1":
            how()
        return before(self, *args)

    LookBack.before = planted  # type: ignore[method-assign]
    signals.GRACE_S = 2.0


def fails() -> None:
    raise MemoryError("planted")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def takes_long() -> None:
    time.sleep(60)


def found_wrong_at_second_checkpoint() -> None:
    check = audit_module.audit
    calls = itertools.count(1)

    def planted(*args: Any) -> list[Check]:
        wrong = [Check("planted", "invalid", "it is wrong")] if next(calls) > 1 else []
        return [*check(*args), *wrong]

    audit_module.audit = planted


def slow_until_stopped() -> None:
    """By much more than a busy machine makes one step longer than another."""
    warn_at(15)
    forward = Stage.forward

    def planted(self: Stage, x: Tensor, context: Context) -> Tensor:
        if self.training and context.microbatch == 0:
            time.sleep(0.25)
        return forward(self, x, context)

    Stage.forward = planted  # type: ignore[method-assign]


@pytest.mark.distributed
def test_facts_that_were_changed_are_no_checkpoints(both: Runs, tmp_path: Path) -> None:
    _, attempts = both
    root = tmp_path / "copy"
    shutil.copytree(attempts[0].attempt.root.parents[2], root)
    before = RunPaths(root).cell(attempts[0].cell.id).attempt(2)
    (path,) = before.checkpoints.iterdir()
    assert read_checkpoint(path, 2).so_far.records
    facts = json.loads((path / "facts.json").read_text())
    (path / "facts.json").write_text(json.dumps(facts | {"so_far": SoFar().as_facts()}))
    with pytest.raises(InputError, match="changed since it was written"):
        read_checkpoint(path, 2)


@pytest.mark.distributed
def test_each_step_was_done_once_and_none_lost(both: Runs) -> None:
    _, attempts = both
    for rank in range(attempts[0].cell.experiment.layout.world_size):
        steps = [s["step"] for a in attempts for s in a.steps(rank, "train")]
        assert steps == list(range(30))
        assert [s["step"] for a in attempts for s in a.steps(rank, "test")] == [0, 1]
        events = [[e["name"] for e in a.lines(rank, "event")] for a in attempts]
        begun = ["self-check", "resumed", "checkpoint"]
        ends = [each for each in events[0] if each.startswith("last self-check")]
        assert events == [["self-check", "checkpoint", *ends], [*begun, *ends], [*begun, *ends]]
        assert ends


@pytest.mark.distributed
def test_the_first_steps_after_a_resume_are_warm_up(both: Runs) -> None:
    _, attempts = both
    warm = attempts[0].cell.experiment.warmup_steps
    assert warm == 2
    for attempt in attempts:
        marks = [step["warmup"] for step in attempt.steps(0, "train")]
        assert marks == [True] * warm + [False] * (len(marks) - warm)


@pytest.mark.distributed
def test_losses_are_those_of_the_uninterrupted_run_to_the_bit(both: Runs) -> None:
    whole, attempts = both
    assert whole.statuses == [0] * len(whole.statuses)
    for phase in ("train", "test"):
        assert [loss for a in attempts for loss in a.losses(phase)] == whole.losses(phase)


@pytest.mark.distributed
def test_parameters_and_optimizer_are_those_of_the_uninterrupted_run_to_the_bit(
    both: Runs,
) -> None:
    whole, attempts = both
    (last,) = whole.attempt.checkpoints.iterdir()
    expected = tensors(last)
    found = tensors(attempts[-1].attempt.checkpoints / last.name)
    assert last.name == "step-00000029"
    assert found.keys() == expected.keys()
    assert any(name.startswith("optimizer/") for name in expected)
    different = [name for name, tensor in expected.items() if not found[name].equal(tensor)]
    assert not different


def measured(balance: list[int], *, fails: bool = False) -> None:
    """Layers are found to be balanced so; rank 0 fails before step 4, after a checkpoint."""
    from gnnhpc.training import setup
    from gnnhpc.training.loop import TrainingLoop

    cut, step = setup.cut, TrainingLoop._train

    def planted_cut(experiment: Experiment, *args: Any) -> list[range]:
        return stage_slices(balance) if experiment.balance == "profile" else cut(experiment, *args)

    def planted_step(self: TrainingLoop, batch: Any) -> Any:
        if fails and self.position.step == 4:
            raise RuntimeError("planted to fail")
        return step(self, batch)

    setup.cut, TrainingLoop._train = planted_cut, planted_step  # type: ignore[assignment, method-assign]


@pytest.mark.slow
@pytest.mark.distributed
def test_one_measurement_has_one_cut(tmp_path: Path) -> None:
    """Although the layers' times, by which it is found, are never the same twice."""
    experiment = gat(layout="pp2", balance="profile", save_every=2)
    (cell,) = manifest_of(tmp_path, experiment)
    failed = run(tmp_path, cell, plant=functools.partial(measured, [2, 4], fails=True))
    assert failed.statuses == [1, 1]
    on = run(tmp_path, cell, plant=functools.partial(measured, [4, 2]))
    assert on.result.resumed_from is not None
    assert on.result.resumed_from["step"] == 4
    assert on.result.layout["balance"] == [2, 4]
    assert on.result.valid, [each for each in on.result.audit if each.verdict == "invalid"]
    fresh = run(tmp_path, cell, plant=functools.partial(measured, [4, 2]))
    assert fresh.result.resumed_from is None
    assert fresh.result.layout["balance"] == [4, 2]


@pytest.mark.distributed
def test_a_checkpoint_of_another_layout_is_loaded_to_evaluate(both: Runs) -> None:
    """Into one process; its loss on the test data is what the stages measured at that step."""
    whole, _ = both
    experiment = whole.cell.experiment
    parts, mesh = alone(experiment)
    path = whole.attempt.checkpoints / "step-00000029"
    load(path, mesh, parts.stage, None)
    stored = tensors(path)
    for name, tensor in parts.stage.state_dict().items():
        assert tensor.equal(stored[f"model/{name}"])
    assert evaluate(parts) == pytest.approx(whole.losses("test")[0], rel=1e-5)


def alone(experiment: Experiment) -> tuple[TrainingParts, Mesh]:
    """The same micro-batches in one process."""
    mesh = Mesh(Layout(), 0, torch.device("cpu"))
    replicas = experiment.layout.replicas
    changes: dict[str, Any] = {
        "layout": Layout(),
        "microbatches": experiment.microbatches * replicas,
    }
    if experiment.batch_size is not None:
        changes["batch_size"] = experiment.batch_size * replicas
    return set_up(experiment.model_copy(update=changes), mesh, None), mesh


def evaluate(parts: TrainingParts) -> float:
    parts.stage.eval()
    parts.timer.prepare()
    parts.timer.start()
    with parts.batches.open("test", 0, 1) as batches:
        for batch in batches:
            outputs = parts.engine.evaluate(batch)
            total, count = parts.task.tally("test", outputs, batch)["loss"]
    return total / count


@pytest.mark.distributed
def test_a_checkpoint_of_another_model_is_refused(both: Runs) -> None:
    whole, _ = both
    other = gat(microbatches=1) if whole.cell.experiment.model.name == "vig" else vig()
    parts, mesh = alone(other)
    with pytest.raises(GnnhpcError, match=r"has no model/.*; it is of another model"):
        load(whole.attempt.checkpoints / "step-00000029", mesh, parts.stage, None)


def change(facts: Path, path: str, value: object) -> None:
    """What a checkpoint says that it was computed with; None to say nothing."""
    text = json.loads(facts.read_text())
    if value is None:
        del text["written_by"]
    else:
        *folders, last = path.split("/")
        place = functools.reduce(
            lambda at, key: at[int(key) if key.isdigit() else key], folders, text["written_by"]
        )
        place[last] = value
    facts.write_text(json.dumps(with_digest(text)))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("code", "0" * 16, "code 0000000000000000 there, "),
        ("ranks/1/threads", 7, "threads of rank 1 7 there, 1 here"),
    ],
)
def test_a_checkpoint_of_something_else_is_not_gone_on_from(
    tmp_path: Path, path: str, value: object, why: str
) -> None:
    """The attempt begins again, says why, and its losses are those of an undisturbed run."""
    experiment = vig(layout="pp2", **STEPS | {"train_steps": 12})
    (cell,) = manifest_of(tmp_path, experiment)
    stopped = run(tmp_path, cell, plant=functools.partial(warn_at, 5))
    assert stopped.result.status == "interrupted"
    (facts,) = stopped.attempt.checkpoints.glob("*/facts.json")
    change(facts, path, value)
    again = run(tmp_path, cell)
    assert again.result.valid
    assert again.result.resumed_from is None
    (passed,) = again.result.provenance["passed_over"]
    assert passed["checkpoint"] == f"attempt-1/{facts.parent.name}"
    assert passed["why"].startswith(why)
    for rank in (0, 1):
        assert [step["step"] for step in again.steps(rank, "train")] == list(range(12))
        events = {event["name"]: event["detail"] for event in again.lines(rank, "event")}
        assert events["checkpoint passed over"] == passed
    assert f"{facts.parent.name} is passed over: {why}" in again.attempt.log(0).read_text()

    # What does not say is gone on from, and the records say that.
    whole = again.losses()
    shutil.rmtree(RunPaths(tmp_path).cell(cell.id).attempt(2).root)
    change(facts, path, None)
    unknown = run(tmp_path, cell)
    assert unknown.result.valid
    step = stopped.result.train_steps
    assert unknown.result.resumed_from == {
        "attempt": 1, "step": step, "tested": 0, "written_by": "unknown",
    }  # fmt: skip
    assert "which does not say what it was computed with" in unknown.attempt.log(0).read_text()
    assert [*stopped.losses(), *unknown.losses()] == whole


# From which checkpoint: on folders made by hand.


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellPaths:
    monkeypatch.delenv(FRESH_VARIABLE, raising=False)
    return CellPaths(tmp_path / "cell")


def attempt(cell: CellPaths, *steps: int, status: str | None = "failed") -> AttemptPaths:
    """One that left these checkpoints, and a result unless its status is none."""
    claimed = cell.claim_attempt()
    for step in steps:
        folder = claimed.checkpoints / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "__0_0.distcp").write_bytes(bytes(range(100)))
        facts = {"version": CHECKPOINT_VERSION, "step": step, "tested": step // 10}
        written = [Written("rank-0000.jsonl", 0, "", 0.0)]
        so_far = SoFar().with_attempt(claimed.root.name, [], written, [])
        facts |= {"files": digests(folder), "so_far": so_far.as_facts()}
        (folder / "facts.json").write_text(json.dumps(with_digest(facts)))
    if status is not None:
        replace(RESULT, status=status).write(claimed.result)  # type: ignore[arg-type]
    return claimed


def resume_point(cell: CellPaths) -> tuple[int, int, int] | None:
    """Attempt, step and evaluations that a new attempt resumes from."""
    found = find_resume_point(cell, cell.claim_attempt()).point
    return None if found is None else (found.attempt, found.step, found.test_steps_done)


@pytest.mark.parametrize("status", ["failed", "interrupted", None])
def test_the_newest_checkpoint_of_an_attempt_that_did_not_finish(
    cell: CellPaths, status: str | None
) -> None:
    attempt(cell, 5, 10, 100, status=status)
    assert resume_point(cell) == (1, 100, 10)


def test_another_attempts_checkpoint_is_no_checkpoint(cell: CellPaths) -> None:
    """Copied into its folder: what it says is of other files than those that would count."""
    first, second = attempt(cell, 5), attempt(cell, 10, 20)
    newest = second.checkpoints / "step-00000020"
    shutil.rmtree(newest)
    moved = first.checkpoints / "step-00000005"
    shutil.copytree(moved, second.checkpoints / "step-00000025")
    with pytest.raises(InputError, match="so_far: found of attempt-1"):
        read_checkpoint(shutil.copytree(moved, second.checkpoints / moved.name), 2)
    assert resume_point(cell) == (2, 10, 1)


def test_nothing_to_resume_from(cell: CellPaths) -> None:
    assert resume_point(cell) is None
    attempt(cell)
    assert resume_point(cell) is None


def test_an_attempt_that_failed_before_its_first_checkpoint_is_passed_over(
    cell: CellPaths,
) -> None:
    attempt(cell, 20)
    attempt(cell)
    assert resume_point(cell) == (1, 20, 2)


def test_a_finished_attempt_is_measured_again_from_the_start(cell: CellPaths) -> None:
    attempt(cell, 20)
    attempt(cell, 29, status="done")
    assert resume_point(cell) is None
    attempt(cell, 7)
    assert resume_point(cell) == (4, 7, 0)


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"version": 99, "step": 1, "tested": 0}'])
def test_a_damaged_checkpoint_is_no_checkpoint(cell: CellPaths, damage: str) -> None:
    left = attempt(cell, 10, 20)
    (left.checkpoints / ".step-00000030.partial").mkdir()
    (left.checkpoints / "step-00000020" / "facts.json").write_text(damage)
    assert resume_point(cell) == (1, 10, 1)


@pytest.mark.parametrize("damage", [b"", bytes(range(99)), bytes(100), None])
def test_a_checkpoint_whose_tensors_are_not_as_written_is_passed_over(
    cell: CellPaths, damage: bytes | None
) -> None:
    left = attempt(cell, 10, 20)
    tensors = left.checkpoints / "step-00000020" / "__0_0.distcp"
    if damage is None:
        tensors.unlink()
    else:
        tensors.write_bytes(damage)
    assert resume_point(cell) == (1, 10, 1)


def test_starting_over_is_asked_for_by_a_variable(
    cell: CellPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(cell, 10)
    monkeypatch.setenv(FRESH_VARIABLE, "1")
    assert resume_point(cell) is None


HERE = {"code": "a", "versions": {"torch": "2"}, "ranks": [{"threads": 1, "kernels": {}}]}


def say(attempt: AttemptPaths, step: int, **changes: object) -> None:
    """What a checkpoint made by hand was computed with."""
    file = attempt.checkpoints / f"step-{step:08d}" / "facts.json"
    facts = json.loads(file.read_text()) | {"written_by": HERE | changes}
    file.write_text(json.dumps(with_digest(facts)))


def test_an_older_checkpoint_that_fits_is_taken_before_a_newer_one_that_does_not(
    cell: CellPaths,
) -> None:
    """As where a job goes to and fro between two makes of nodes."""
    first = attempt(cell, 10, 20)
    say(first, 10)
    say(first, 20)
    second = attempt(cell, 5, 15)
    say(second, 5, ranks=[{"threads": 2, "kernels": {}}])
    say(second, 15, versions={"torch": "1", "pymetis": "3"})
    found = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert found.point is not None
    assert found.point.name == "attempt-1/step-00000020"
    assert found.passed_over == (
        {
            "checkpoint": "attempt-2/step-00000015",
            "why": "pymetis 3 there, none here; torch 1 there, 2 here",
        },
        {
            "checkpoint": "attempt-2/step-00000005",
            "why": "threads of rank 0 2 there, 1 here",
        },
    )
    assert found.lines()[0].endswith("; goes on from attempt-1/step-00000020")


def test_a_damaged_checkpoint_is_passed_over_aloud(cell: CellPaths) -> None:
    left = attempt(cell, 10)
    (left.checkpoints / "step-00000010" / "__0_0.distcp").unlink()
    found = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert found.point is None
    assert found.lines() == [
        "checkpoint attempt-1/step-00000010 is passed over: __0_0.distcp is missing or damaged; "
        "begins at step 0"
    ]


def test_the_number_of_ranks_is_compared(cell: CellPaths) -> None:
    say(attempt(cell, 10), 10, ranks=[*HERE["ranks"], *HERE["ranks"]])
    found = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert [each["why"] for each in found.passed_over] == ["ranks 2 there, 1 here"]
