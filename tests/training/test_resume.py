"""Interrupted and resumed: to the bit what an uninterrupted run computes."""

from __future__ import annotations

import functools
import os
import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from gnnhpc.core.errors import EXIT_DONE, EXIT_UNFINISHED
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import stage_slices
from gnnhpc.models.model import Context
from gnnhpc.training.checkpoint import load
from gnnhpc.training.setup import set_up
from tests.tools.cells import Ran, RunOnce, gat, in_one_process, manifest_of, run, sampled, vig

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

STEPS = {"train_steps": 16, "test_steps": 1, "test_every": 15, "save_every": 15}
CELLS = {
    "vig": vig(layout="pp2", schedule="1f1b", batchnorm="deferred", **STEPS),
    "gat": gat(layout="dp2-pp2", microbatches=2, **STEPS),
    "gat zbv": gat(layout="pp2", microbatches=3, schedule="zbv", **STEPS),
    "sampled in replicas": sampled(layout="dp2", batch_size=12, microbatches=2, **STEPS),
}


def warn_at(*steps: int, which: str = "SIGUSR2", rank: int = 1) -> None:
    """A rank is sent what a site sends ahead of a time limit, in these training steps."""
    forward = Stage.forward

    def planted(self: Stage, x: Tensor, context: Context) -> Tensor:
        is_warned = os.environ["RANK"] == str(rank) and self.training
        if is_warned and context.microbatch == 0 and context.step in steps:
            os.kill(os.getpid(), signal.Signals[which])
        return forward(self, x, context)

    Stage.forward = planted  # type: ignore[method-assign]


Runs = tuple[Ran, list[Ran]]
PARAMS = [pytest.param(name, marks=() if name == "vig" else pytest.mark.slow) for name in CELLS]


@pytest.fixture(params=PARAMS)
def both(request: pytest.FixtureRequest, run_once: RunOnce) -> Runs:
    """The same cell twice: whole, and in three attempts."""
    experiment = CELLS[request.param]
    interrupted = functools.partial(warn_at, 4, 9)
    return run_once(experiment), run_once.attempts("interrupted", experiment, [interrupted] * 3)


def tensors(path: Path) -> dict[str, Tensor]:
    """All that a checkpoint holds, by name."""
    known = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {name: torch.empty(t.size, dtype=t.properties.dtype) for name, t in known.items()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


@pytest.mark.distributed
def test_interrupted_attempts_compute_what_a_whole_run_does_to_the_bit(both: Runs) -> None:
    """Losses, parameters and the optimizer; each step is done once, and none is lost."""
    whole, attempts = both
    ranks = attempts[0].cell.experiment.layout.world_size
    assert whole.statuses == [0] * ranks
    unfinished = [EXIT_UNFINISHED] * ranks
    assert [a.statuses for a in attempts] == [unfinished, unfinished, [EXIT_DONE] * ranks]
    results = [a.result for a in attempts]
    assert [r.status for r in results] == ["interrupted", "interrupted", "done"]
    assert results[-1].valid
    assert results[0].resumed_from is None
    for before, after in pairwise(results):
        assert after.resumed_from == {"attempt": before.attempt, "step": before.train_steps}
    for rank in range(ranks):
        steps = [s["step"] for a in attempts for s in a.steps(rank, "train")]
        assert steps == list(range(16))
        assert [s["step"] for a in attempts for s in a.steps(rank, "test")] == [0, 1]
        for attempt in attempts:
            marks = [step["warmup"] for step in attempt.steps(rank, "train")]
            assert marks == [True] * 2 + [False] * (len(marks) - 2), "after a resume too"
    own = {f"rank-{each:04}.jsonl" for each in range(ranks)}
    earlier = {f"../attempt-{number}/{name}" for number in (1, 2) for name in own}
    assert results[-1].records.keys() == own | earlier
    for phase in ("train", "test"):
        assert [loss for a in attempts for loss in a.losses(phase)] == whole.losses(phase)
    logs = [whole.attempt.log(rank).read_text() for rank in range(2)]
    assert re.search(r"train step 16 of 16: \d\.\d{4} s, loss \d\.\d{4}", logs[0])
    assert "): progress and loss are in rank-0000.log" in logs[1]
    (last,) = whole.attempt.checkpoints.iterdir()
    expected = tensors(last)
    found = tensors(attempts[-1].attempt.checkpoints / last.name)
    assert last.name == "step-00000015"
    assert found.keys() == expected.keys()
    assert any(name.startswith("optimizer/") for name in expected)
    assert not [name for name, tensor in expected.items() if not found[name].equal(tensor)]


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
    experiment, mesh = whole.cell.experiment, Mesh(Layout(), 0, torch.device("cpu"))
    parts = set_up(in_one_process(experiment), mesh, None)
    path = whole.attempt.checkpoints / "step-00000015"
    load(path, mesh, parts.stage, None)
    stored = tensors(path)
    for name, tensor in parts.stage.state_dict().items():
        assert tensor.equal(stored[f"model/{name}"])
    parts.stage.eval()
    parts.timer.start()
    with parts.batches.open("test", 0, 1) as batches:
        (batch,) = batches
        outputs = parts.engine.evaluate(batch)
        total, count = parts.task.metric_sums("test", outputs, batch)["loss"]
    assert total / count == pytest.approx(whole.losses("test")[0], rel=1e-5)
