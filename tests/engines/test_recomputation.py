"""Forwards that are computed again in backward change nothing but memory and time."""

from __future__ import annotations

import contextlib
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.immutable_collections import immutable_list

from gnnhpc.core.schedule import recomputed_microbatches
from gnnhpc.engines.engine import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.models.loose_state import loose_state
from gnnhpc.models.recomputation import ForwardState, is_recomputing
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
    again = parts_of(experiment.model_copy(update={"activation_checkpointing": checkpoint}))
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
    experiment = experiment.model_copy(update={"activation_checkpointing": checkpoint})
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


class MovingLayer(torch.nn.Module):
    """A user's layer whose output is of buffers that it moves, in place and by new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))
        self.normed = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        moved: Tensor = self.normed(x) * float(self.count) - self.mean
        return moved


class SharingLayer(torch.nn.Module):
    """A user's layer with a buffer in two modules, a view of it, and some that come later."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("first", self.count[:1])
        self.register_buffer("late", None)
        self.other = torch.nn.Module()
        self.other.register_buffer("same", self.count)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        self.first += 1
        self.late = (1 if self.late is None else self.late) * torch.full((), 1.5)
        if not hasattr(self, "later"):
            self.register_buffer("later", torch.ones(()))
        else:
            self.later += 1
        return x * float(self.other.same.sum() + self.late * self.later)


class LayerOfOtherGenerators(torch.nn.Module):
    """A user's layer with random numbers of Python's and of numpy's, and of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = (np.random.default_rng(0), "in a tuple")

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x * random.random() * np.random.rand() * self.own[0].random()


class UnseenLayer(torch.nn.Module):
    """A user's layer whose buffers are written in ways that autograd does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("other", torch.zeros(1))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        self.count.data.add_(1)
        self.other.numpy()[:] += 0.5
        return x * float(self.count * self.other)


class CountingLayer(torch.nn.Module):
    """A user's layer that keeps numbers of its own, a generator it makes when first called, and
    changes an attribute of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.last: list[int] = []
        self.same = self.last
        self.seen: set[int] = set()
        self.recent: deque[int] = deque(maxlen=3)
        self.by_name = {"calls": 1}
        self.own: torch.Generator | None = None
        self.dropout = torch.nn.Dropout(0.9)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        self.calls += 1
        self.last.append(context.microbatch + 1)
        self.dropout.p *= 0.5
        self.seen.add(self.calls)
        self.recent.append(self.calls)
        self.by_name["calls"] += len(self.seen) + sum(self.recent)
        self.made_late = getattr(self, "made_late", 1) * 2
        if self.own is None:
            self.own = torch.Generator().manual_seed(0)
        drawn = torch.rand((), generator=self.own)
        assert self.same is self.last
        scale = self.calls * sum(self.same) * self.made_late * self.by_name["calls"]
        dropped: Tensor = self.dropout(x)
        return dropped * scale * drawn


class LayerOfOddAttributes(torch.nn.Module):
    """A user's layer with attributes that cannot be changed, are large, or lie in C++."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = immutable_list([1, 2])
        self.act = torch.jit.script(torch.nn.Tanh())
        self.seen = list(range(20_000))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        self.last = x.detach().repeat(1, 1, 2**14)
        activated: Tensor = self.act(x) * sum(self.sizes)
        return activated


USERS_LAYERS = [
    RandomLayer,
    MovingLayer,
    SharingLayer,
    LayerOfOtherGenerators,
    UnseenLayer,
    CountingLayer,
    LayerOfOddAttributes,
]


@pytest.mark.parametrize("layer", USERS_LAYERS)
def test_a_users_layer_computes_the_same_and_moves_its_buffers_once(
    layer: Callable[[], torch.nn.Module],
) -> None:
    def step(recomputed: range) -> tuple[dict[str, Tensor], list[Tensor | None], list[Any]]:
        """Two micro-batches' forwards before their backwards, as in a pipeline."""
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        stage = Stage(parts_of(vig()).outlines[:1], [layer()], None).train()
        stage.recomputed = recomputed
        inputs = [torch.randn(2, 64, 3).requires_grad_() for _ in range(2)]
        contexts = [Context(microbatch=number) for number in range(2)]
        outputs = [stage(*each) for each in zip(inputs, contexts, strict=True)]
        # The first one's last: its forward leaves generators elsewhere than all forwards do.
        for output in reversed(outputs):
            output.square().sum().backward()
        trained = [*inputs, *stage.parameters()]
        told = [random.random(), np.random.rand(), float(torch.rand(())), loose_state(stage)]
        return dict(stage.named_buffers()), [each.grad for each in trained], told

    buffers, gradients, told = step(range(0))
    again, gradients_again, told_again = step(range(2))
    assert told == told_again
    for gradient, other in zip(gradients, gradients_again, strict=True):
        assert gradient is not None
        assert other is not None
        assert torch.equal(gradient, other)
    assert all(torch.equal(buffers[name], again[name]) for name in buffers)
    counts = [b for name, b in again.items() if name.endswith(("num_batches_tracked", "count"))]
    assert [int(count.sum()) for count in counts] == [2] * len(counts)


def test_buffers_that_do_not_move_are_copied_once() -> None:
    """As a table, of which each micro-batch would have a copy."""
    layer = MovingLayer()
    layer.register_buffer("table", torch.ones(10))
    state = ForwardState(layer)
    held = []
    for _ in range(3):
        held.append(state.before())
        layer(torch.randn(2, 4, 3), Context())
    copies = [{id(copy) for each in one.copied for copy in each.copies} for one in held]
    assert [len(each) for each in copies] == [5, 5, 5]
    assert len(copies[0] & copies[1] & copies[2]) == 1


def test_large_tensors_that_a_layer_keeps_are_not_kept_for_it() -> None:
    layer = LayerOfOddAttributes()
    state, held, kept = ForwardState(layer), [], []
    for _ in range(3):
        held.append(state.before())
        layer(torch.randn(2, 4, 3), Context())
        kept.append(weakref.ref(layer.last))
    assert [each() is None for each in kept] == [True, True, False]
    with state.again(held[1]):
        assert layer.last is kept[2]()
    with state.again(held[0]):
        assert not hasattr(layer, "last")
    assert layer.last is kept[2]()


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_gives_the_same_losses_and_norms(schedule: str, tmp_path: Path) -> None:
    both: dict[str, Any] = {"layout": "pp2", "schedule": schedule, "batchnorm": "deferred"}
    cells = manifest_of(tmp_path, vig(**both), vig(activation_checkpointing="all", **both))
    never, always = (run(tmp_path, cell) for cell in cells)
    assert always.result.valid, always.result.audit
    for phase in ("train", "test"):
        assert always.losses(phase) == never.losses(phase)
    for rank in (0, 1):
        norms = [[s["grad_norm"] for s in ran.steps(rank, "train")] for ran in (never, always)]
        assert norms[0] == norms[1]
        steps = always.steps(rank, "train")
        assert all(0 < step["recompute_s"] < step["backward_s"] for step in steps)
