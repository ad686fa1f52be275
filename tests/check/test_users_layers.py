"""Backward seconds of a user's layers that work in place, or have hooks of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gnnhpc.engines.clock import Mark
from gnnhpc.engines.timing import StepTimer
from gnnhpc.records.schema import read_lines
from tests.defects.patching import around
from tests.tools.own_models import add_folder, checked, invalid

pytestmark = pytest.mark.distributed

SPINS_S = 0.01
MODEL = """
import time
import torch
from torch import nn
from gnnhpc import Layer, Model

NAMES = ["first", "spins", "second", "out"]


class Centred(Model):
    takes = ("images",)

    def outline(self, facts):
        shape = (facts.image_size**2, facts.features)
        flat = Layer("flat", shape, (shape[0] * shape[1],))
        widths = [flat.shape[0], 64, 64, 64, facts.classes]
        return [flat, *(Layer(n, (i,), (o,)) for n, i, o in zip(NAMES, widths, widths[1:]))]

    def build(self, layer, options):
        kind = {"flat": Flat, "spins": Spins, "second": Second}.get(layer.name, Linear)
        return kind(layer.inputs[0], layer.shape[0]).to(options.dtype)


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = nn.Linear(inputs, outputs)

    def forward(self, x, context):
        return self.lin(x)


class Flat(nn.Module):
    def __init__(self, *_):
        super().__init__()

    def forward(self, x, context):
        return x.flatten(1)


class Spin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        until_s = time.perf_counter() + 0.01
        while time.perf_counter() < until_s:
            pass
        return gradient


class Spins(Linear):
    def forward(self, x, context):
        SPINS


class Second(Linear):
    def forward(self, x, context):
        SECOND
"""
# Of the layer that spins, and of the one after it.
IN_PLACE = "x += Spin.apply(self.lin(x.clone())); return x"
KINDS = {
    "in place": (IN_PLACE, "return self.lin(x)"),
    "both in place": (IN_PLACE, "x += self.lin(x.detach().clone()); return x"),
    "a view, then relu_": (
        "return Spin.apply(self.lin(x)).view(-1, 8, 8).flatten(1)",
        "torch.relu_(x); return self.lin(x)",
    ),
    "a view, then relu_ handed on": (
        "return Spin.apply(self.lin(x)).view(-1, 8, 8).flatten(1)",
        "return torch.relu_(x)",
    ),
    "ends transposed": (
        "return Spin.apply(self.lin(x))",
        "return self.lin(x).t().contiguous().t()",
    ),
    "gradient of an energy": (
        """with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            energy = self.lin(x).tanh().sum()
            (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
        return Spin.apply(x + gradient) if self.training else (x + gradient).detach()""",
        "return self.lin(x)",
    ),
}
LAYOUTS = {
    "seq": (1, []),
    "recomputed": (1, ["checkpoint=always"]),
    "pp2": (2, ["layout=pp2", "balance=[4,1]"]),
    "pp2, the first of its stage": (2, ["layout=pp2", "balance=[2,3]"]),
    "pipelining": (2, ["layout=pp2", "balance=[4,1]", "engine=pipelining"]),
    "torchgpipe": (1, ["layout=pp2", "balance=[4,1]", "engine=torchgpipe"]),
    "dp2": (2, ["layout=dp2", "batch_size=16", "bucket_mib=0.001"]),
}


@pytest.mark.quick(
    "both in place-seq",
    "a view, then relu_ handed on-pp2",
    "gradient of an energy-pp2, the first of its stage",
    "ends transposed-pipelining",
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_has_its_own_backward_seconds(kind: str, layout: str, tmp_path: Path) -> None:
    ranks, settings = LAYOUTS[layout]
    if kind != "gradient of an energy" and layout == "pp2, the first of its stage":
        pytest.skip("what a stage received may not be changed in place")
    spins, second = KINDS[kind]
    text = MODEL.replace("SPINS", spins).replace("SECOND", second)
    flags = [each for setting in settings for each in ("--set", setting)]
    checks = checked(tmp_path, text, *flags, "--set", "train_steps=4", ranks=ranks)
    assert invalid(checks) == [], [checks[name].detail for name in invalid(checks)]
    seconds = [
        line["groups"]["spins"][1]
        for path in tmp_path.glob("out/cells/*/*/rank-*.jsonl")
        for line in read_lines(path)
        if line["kind"] == "step" and line["phase"] == "train" and "spins" in line["groups"]
    ]
    # Of two micro-batches.
    assert len(seconds) == 4 * (2 if layout == "dp2" else 1)
    assert all(each >= 2 * SPINS_S for each in seconds)


def exchanged(folder: Path) -> None:
    """Backward seconds of two layers, each told as the other's."""
    add_folder(folder)
    names = {"spins": "second", "second": "spins"}

    def told(true: Callable[..., None], timer: StepTimer, name: str | None, at: Mark) -> None:
        true(timer, None if name is None else names.get(name, name), at)

    around(StepTimer, "layer_backward", told)


@pytest.mark.parametrize("layout", ["seq", pytest.param("pipelining", marks=pytest.mark.slow)])
@pytest.mark.parametrize("plant", [None, exchanged], ids=["sound", "exchanged"])
def test_a_hook_of_a_whole_layer_hides_no_wrong_seconds(
    plant: Callable[[Path], None] | None, layout: str, tmp_path: Path
) -> None:
    ranks, settings = LAYOUTS[layout]
    text = MODEL.replace("SPINS", "return Spin.apply(self.lin(x))").replace(
        "SECOND", "return self.lin(x)"
    )
    hook = "self.register_full_backward_hook(lambda layer, of_input, of_output: None)"
    text = text.replace("outputs)\n", f"outputs)\n        {hook}\n", 1)
    assert hook in text
    # Longer than a busy machine takes the processor away within another layer in every step.
    text = text.replace("time.perf_counter() + 0.01", "time.perf_counter() + 0.05")
    assert "0.05" in text
    flags = [each for setting in settings for each in ("--set", setting)]
    flags += ["--set", "train_steps=4"]
    checks = checked(tmp_path, text, *flags, ranks=ranks, plant=plant)
    assert invalid(checks) == (["step times"] if plant else [])
