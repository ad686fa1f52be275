"""Cells that fail on real ranks: who failed first and why is in the result, and all ranks end."""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.copy_custom_models import copy_models
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.model import Context
from gnnhpc.records import failures
from gnnhpc.records.schema import Failure
from gnnhpc.worker import training_run
from tests.tools.cells import Ran, gat, manifest_of, run, vig
from tests.validation.custom_models import GRAPH, write_model

pytestmark = pytest.mark.distributed


def at(rank: int, step: int, action: Callable[[], None]) -> None:
    """Plant `action` into the forward pass of one training step of one rank."""
    forward = Stage.forward

    def planted(self: Stage, x: Tensor, context: Context) -> Tensor:
        trains = int(os.environ["RANK"]) == rank and self.training
        if trains and context.step == step:
            action()
        return forward(self, x, context)

    Stage.forward = planted  # type: ignore[method-assign]


def fail() -> None:
    raise ValueError("planted\nin two lines")


def die_at(rank: int, step: int) -> None:
    """Ranks do not wait as long as usual for what others say of their end."""
    failures.SETTLE_S = 0.5
    at(rank, step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def sleep() -> None:
    time.sleep(600)


def be_stopped() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def other_code(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        training_run.code_digest = lambda: "0" * 16  # type: ignore[assignment]


def small_disk(rank: int, limit: int) -> None:
    """No file of this rank may grow beyond `limit` bytes."""
    if int(os.environ["RANK"]) == rank:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def ran(
    root: Path, experiment: Experiment, *plant: object, env: dict[str, str] | None = None
) -> Ran:
    """Run one cell with a plant: its function, then that one's arguments; without validation,
    which computes steps of its own."""
    experiment = experiment.model_copy(update={"check": "off"})
    planted = functools.partial(*plant) if plant else None  # type: ignore[arg-type]
    return run(root, manifest_of(root, experiment)[0], plant=planted, env=env)


def failure_of(cell: Ran) -> Failure:
    """Why both ranks of the cell failed."""
    assert cell.statuses == [1, 1], cell.err
    assert cell.result.failure is not None
    return cell.result.failure


def recorded(cell: Ran, rank: int) -> list[int]:
    return [step["step"] for step in cell.steps(rank, "train")]


LAYOUTS = [vig(layout="pp2"), gat(layout="dp2", microbatches=2)]


@pytest.mark.quick("pp2")
@pytest.mark.parametrize("experiment", LAYOUTS, ids=lambda e: f"{e.layout}")
def test_an_exception_on_one_rank(tmp_path: Path, experiment: Experiment) -> None:
    cell = ran(tmp_path, experiment, at, 1, 3, fail)
    failure = failure_of(cell)
    assert (cell.result.status, cell.result.valid) == ("failed", False)
    assert (failure.rank, failure.step, failure.phase) == (1, 3, "train")
    assert failure.error == "ValueError: planted in two lines"
    assert recorded(cell, 0) == recorded(cell, 1) == [0, 1, 2], "every step before it is kept"
    log = cell.attempt.log(1).read_text()
    assert log.index("rank 1 on") < log.index("Traceback"), "the line first, then the details"
    assert "ValueError: planted in two lines" in cell.err[1], "and where the launcher listens"


@pytest.mark.quick("1")
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank(tmp_path: Path, killed: int) -> None:
    """Rank 0 holds the store and would write the result; the other one does it then."""
    cell = ran(tmp_path, vig(layout="pp2"), die_at, killed, 2)
    assert cell.statuses[killed] == -signal.SIGKILL
    assert cell.statuses[1 - killed] == 1
    failure = cell.result.failure
    assert failure is not None
    assert (failure.rank, failure.step) == (killed, 2)
    assert failure.error == "ended without an error message: killed, or out of memory"
    assert recorded(cell, 0) == recorded(cell, 1) == [0, 1]


@pytest.mark.slow
def test_a_rank_that_hangs(tmp_path: Path) -> None:
    cell = ran(tmp_path, vig(layout="pp2"), at, 1, 2, sleep, env={"GNNHPC_HANG_S": "3"})
    failure = failure_of(cell)
    assert (failure.rank, failure.step) == (1, 2)
    assert failure.error.startswith("hung: no rank did anything for 4 s; it was in forward of")
    assert recorded(cell, 0) == [0, 1]


def test_a_stopped_rank_finishes_its_step_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    cell = ran(tmp_path, gat(layout="pp2", train_steps=40), at, 1, 2, be_stopped)
    assert cell.statuses == [3, 3]
    result = cell.result
    assert (result.status, result.failure) == ("interrupted", None)
    assert recorded(cell, 0) == list(range(result.train_steps))
    assert [path.name for path in cell.attempt.checkpoints.iterdir()] == [
        f"step-{result.train_steps:08d}"
    ]
    assert "stopped by a signal on another rank before training step" in (
        cell.attempt.log(0).read_text()
    )


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    cell = ran(tmp_path, gat(layout="dp2", optimizer={"lr": 1e30}))
    failure = failure_of(cell)
    assert failure.error == f"the train loss of step {failure.step} is nan"
    assert cell.steps(1, "train")[-1]["loss"] is None, "no number that means missing"


def test_ranks_that_run_other_code(tmp_path: Path) -> None:
    cell = ran(tmp_path, gat(layout="pp2"), other_code, 1)
    failure = failure_of(cell)
    assert failure.error.startswith("rank 1 on ")
    assert "runs other code (0000000000000000) than rank 0 on" in failure.error


def test_a_disk_that_fills_up_on_one_node(tmp_path: Path) -> None:
    """Below the size of the result this rank cannot write that one either; the other does."""
    # Memory that is shared would be such a file too.
    env = {"GNNHPC_SHARED_MEMORY": "0"}
    cell = ran(tmp_path, gat(layout="pp2", train_steps=60), small_disk, 1, 3_000, env=env)
    failure = failure_of(cell)
    assert failure.rank == 1
    said = f"{cell.attempt.records(1)}: cannot be written (File too large)"
    assert failure.error == said
    assert said in cell.err[1]
    steps = recorded(cell, 1)
    assert steps == list(range(len(steps)))
    assert len(recorded(cell, 0)) - len(steps) <= 1


def test_an_own_model_that_cannot_be_loaded_leaves_a_failed_attempt(tmp_path: Path) -> None:
    model = CustomModel.model_validate(write_model(tmp_path, GRAPH)).planned(tmp_path)
    run_folder = tmp_path / "run"
    (cell,) = manifest_of(run_folder, gat(model=model, layout="dp2", microbatches=2))
    copy_models(RunPaths(run_folder), [cell.experiment])
    (kept,) = RunPaths(run_folder).code.glob("*/net.py")
    kept.write_text(GRAPH + "# edited")
    expected = r"model net:Net: digest: found .* in .*net\.py; allowed: .*"
    ended = run(run_folder, cell)
    assert ended.statuses == [2, 2]
    assert ended.attempt.number == 1
    assert (ended.result.status, ended.result.valid) == ("failed", False)
    assert ended.result.failure is not None
    assert re.fullmatch(expected, ended.result.failure.error)
    assert "Traceback" not in "".join(ended.err)
