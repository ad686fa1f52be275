"""Forwards that are computed again in backward change nothing but memory and time."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.core.schedule import recomputed_microbatches
from gnnhpc.engines.base import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.models.recomputation import is_recomputing
from tests.engines.steps import parts_of, step_of, take_step
from tests.tools.cells import gat, manifest_of, run, vig

RESGCN = {"model": {"name": "resgcn", "layers": 3, "hidden": 8, "dropout": 0.5}}
CASES = {
    "gat": gat(),
    "resgcn": gat(**RESGCN),
    "vig": vig(batchnorm="deferred"),
    "vig micro": vig(),
    "vig in PyG's form": vig(model={"name": "vig", "blocks": 1, "implementation": "reference"}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("checkpoint", ["except_last", "always"])
def test_a_step_gives_the_same_bits(name: str, checkpoint: str) -> None:
    experiment = CASES[name]
    again = parts_of(experiment.model_copy(update={"checkpoint": checkpoint}))
    forwards: list[bool] = []
    again.stage.layers[0].register_forward_hook(lambda *_: forwards.append(is_recomputing()))
    assert take_step(again).is_to_the_bit(step_of(experiment))
    assert sum(forwards) == {"except_last": 3, "always": 4}[checkpoint]
    assert len(forwards) - sum(forwards) == 4


def test_which_micro_batches_are_computed_again() -> None:
    assert list(recomputed_microbatches("never", 3)) == []
    assert list(recomputed_microbatches("except_last", 3)) == [0, 1]
    assert list(recomputed_microbatches("always", 3)) == [0, 1, 2]
    assert list(recomputed_microbatches("except_last", 1)) == []


@contextlib.contextmanager
def kept_bytes(stage: Stage) -> Iterator[dict[str, int]]:
    """What autograd keeps for backward, `now` and at `most`, but for parameters."""
    held = {"now": 0, "most": 0}
    parameters = {p.untyped_storage().data_ptr() for p in stage.parameters()}

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            own = tensor.untyped_storage().data_ptr() not in parameters
            size = tensor.numel() * tensor.element_size() if own else 0
            held["now"] += size
            held["most"] = max(held["most"], held["now"])
            weakref.finalize(self, release, size)

    def release(size: int) -> None:
        held["now"] -= size

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        yield held


def most_kept(checkpoint: str, microbatches: int) -> int:
    """Of a stage of a pipeline, which does all forwards before its backwards."""
    experiment = vig(microbatches=microbatches, batch_size=2 * microbatches)
    experiment = experiment.model_copy(update={"checkpoint": checkpoint})
    parts = parts_of(experiment)
    stage = parts.stage.train()
    with parts.batches.open("train", 0, 1) as batches, kept_bytes(stage) as held:
        outputs = [stage(first_input(m), m.context) for m in next(batches).microbatches]
        while outputs:
            outputs.pop().sum().backward()
    assert held["now"] == 0
    return held["most"]


def test_inputs_alone_are_kept() -> None:
    """The more micro-batches, the less of what is kept are activations of more than one."""
    never, last, always = (most_kept(each, 8) for each in ("never", "except_last", "always"))
    assert max(last, always) < never / 4


class RandomLayer(torch.nn.Module):
    """A user's layer: its own random numbers, torch's BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        dropped: Tensor = self.norm(torch.nn.functional.dropout(x.flatten(0, 1), 0.5))
        return dropped.view_as(x)


def test_a_users_layer_draws_the_same_numbers_and_moves_its_statistics_once() -> None:
    def step(recomputed: range) -> tuple[dict[str, Tensor], Tensor]:
        stage = Stage(parts_of(vig()).outlines[:1], [RandomLayer()], None).train()
        stage.recomputed = recomputed
        torch.manual_seed(0)
        x = torch.randn(2, 64, 3).requires_grad_()
        stage(x, Context()).square().sum().backward()
        assert x.grad is not None
        return dict(stage.named_buffers()), x.grad

    buffers, gradient = step(range(0))
    again, gradient_again = step(range(1))
    assert torch.equal(gradient, gradient_again)
    assert all(torch.equal(buffers[name], again[name]) for name in buffers)
    (count,) = (b for name, b in again.items() if name.endswith("num_batches_tracked"))
    assert int(count) == 1


@pytest.mark.distributed
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_gives_the_same_losses_and_norms(schedule: str, tmp_path: Path) -> None:
    both: dict[str, Any] = {"layout": "pp2", "schedule": schedule, "batchnorm": "deferred"}
    cells = manifest_of(tmp_path, vig(**both), vig(checkpoint="all", **both))
    never, always = (run(tmp_path, cell) for cell in cells)
    assert always.result.valid, always.result.audit
    for phase in ("train", "test"):
        assert always.losses(phase) == never.losses(phase)
    for rank in (0, 1):
        norms = [[s["grad_norm"] for s in ran.steps(rank, "train")] for ran in (never, always)]
        assert norms[0] == norms[1]
        steps = always.steps(rank, "train")
        assert all(0 < step["recompute_s"] < step["backward_s"] for step in steps)
