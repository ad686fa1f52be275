"""Activation checkpointing changes nothing but memory and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv

from gnnhpc.engines.engine import first_input
from gnnhpc.models.layers.batchnorm import is_recomputing
from tests.engines.steps import parts_of, step_of, take_step
from tests.tools.cells import gat, vig
from tests.training.test_resumed_custom_model import HELD, cell

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


def kept_bytes(checkpoint: str) -> int:
    """What a stage keeps of all forwards for its backwards, but for parameters."""
    experiment = vig(microbatches=8, batch_size=16, activation_checkpointing=checkpoint)
    parts, kept = parts_of(experiment), dict[int, int]()
    stage = parts.stage.train()

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        parts.batches.open("train", 0, 1) as batches,
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        outputs = [stage(first_input(m), m.context) for m in next(batches).microbatches]
    assert len(outputs) == 8
    for parameter in stage.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def test_inputs_alone_are_kept() -> None:
    never, last, always = map(kept_bytes, ("never", "except_last", "always"))
    assert max(last, always) < never / 4


CUSTOM = {
    "random": HELD["torch"],
    "batchnorm": ("self.norm = nn.BatchNorm1d(8)", "x = self.norm(x)"),
    "buffer": ("self.register_buffer('n', torch.ones(()))", "self.n += 1; self.n = 2 * self.n"),
    "output depends on the buffer": (
        "self.register_buffer('n', torch.ones(()))",
        "self.n += 1; x = x / float(self.n)",
    ),
}


@pytest.mark.parametrize("kind", CUSTOM.values(), ids=CUSTOM)
def test_a_custom_layer_computes_the_same_and_moves_its_buffers_once(
    kind: tuple[str, str], tmp_path: Path
) -> None:
    steps = []
    for checkpoint in ("never", "always"):
        experiment = cell(tmp_path, kind, activation_checkpointing=checkpoint)
        torch.manual_seed(0)
        steps.append(step_of(experiment))
    assert steps[1].is_to_the_bit(steps[0])
