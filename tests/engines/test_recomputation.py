"""Activation checkpointing changes nothing but memory and time."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv

from gnnhpc.engines.engine import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.model import Context
from tests.engines.steps import parts_of, step_of, take_step
from tests.tools.cells import gat, vig

RESGCN = {"model": {"name": "resgcn", "layers": 3, "hidden": 8, "dropout": 0.5}}
CASES = {
    "gat": gat(),
    "resgcn": gat(**RESGCN),
    "vig": vig(batchnorm="deferred"),
    "vig in PyG's form": vig(model={"name": "vig", "blocks": 1, "implementation": "pyg"}),
}


@pytest.mark.parametrize(
    ("name", "checkpoint"), [*((name, "always") for name in CASES), ("gat", "except_last")]
)
def test_a_step_gives_the_same_bits(name: str, checkpoint: str) -> None:
    experiment = CASES[name]
    again = parts_of(experiment.model_copy(update={"activation_checkpointing": checkpoint}))
    forwards: list[bool] = []
    again.stage.layers[0].register_forward_hook(lambda *_: forwards.append(is_recomputing()))
    assert take_step(again).is_to_the_bit(step_of(experiment))
    assert sum(forwards) == {"except_last": 3, "always": 4}[checkpoint]
    assert len(forwards) - sum(forwards) == 4


@pytest.mark.parametrize(("name", "kind"), [("gat", GATConv), ("gatv2", GATv2Conv)])
def test_pygs_attention_keeps_no_dropout_mask(name: str, kind: Any) -> None:
    """torch leaves a recomputed forward early, and a mask must not outlast it."""
    model = {"name": name, "implementation": "pyg"}
    parts = parts_of(gat(model=model, activation_checkpointing="always"))
    layers = [each for each in parts.stage.modules() if isinstance(each, kind)]
    edges = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])

    def by_pyg() -> list[Tensor]:
        return [kind.forward(each, torch.ones(4, each.in_channels), edges) for each in layers]

    before = by_pyg()
    take_step(parts)
    assert len(layers) == 2
    assert all(torch.equal(*pair) for pair in zip(before, by_pyg(), strict=True))


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


class CustomLayer(torch.nn.Module):
    """A custom layer with random numbers, torch's BatchNorm, and an output that depends on buffers
    that it moves, in place and by new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))
        self.norm = torch.nn.BatchNorm1d(3)
        self.normed = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        dropped: Tensor = self.norm(torch.nn.functional.dropout(x.flatten(0, 1), 0.5))
        return self.normed(dropped.view_as(x)) * float(self.count) - self.mean


def test_a_custom_layer_computes_the_same_and_moves_its_buffers_once() -> None:
    """Two micro-batches' forwards before their backwards, as in a pipeline."""

    def step(recomputed: range) -> tuple[dict[str, Tensor], list[Tensor | None], float]:
        torch.manual_seed(0)
        parts = parts_of(vig())
        stage = Stage(parts.layer_specs[:1], [CustomLayer()], parts.timer).train()
        stage.recomputed = recomputed
        inputs = [torch.randn(2, 64, 3).requires_grad_() for _ in range(2)]
        contexts = [Context(microbatch=number) for number in range(2)]
        outputs = [stage(*each) for each in zip(inputs, contexts, strict=True)]
        # The first one's last: its forward leaves generators elsewhere than all forwards do.
        for output in reversed(outputs):
            output.square().sum().backward()
        trained = [*inputs, *stage.parameters()]
        return dict(stage.named_buffers()), [each.grad for each in trained], float(torch.rand(()))

    buffers, gradients, random_number = step(range(0))
    again, gradients_again, same_number = step(range(2))
    assert random_number == same_number
    for gradient, other in zip(gradients, gradients_again, strict=True):
        assert gradient is not None
        assert other is not None
        assert torch.equal(gradient, other)
    assert all(torch.equal(buffers[name], again[name]) for name in buffers)
    counts = [b for name, b in again.items() if name.endswith(("num_batches_tracked", "count"))]
    assert [int(count) for count in counts] == [2] * len(counts)
