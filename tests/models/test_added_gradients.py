"""Layers that add to gradients and move statistics themselves do what autograd and BatchNorm do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.models.added_gradients import add_gradients_in_place
from gnnhpc.models.batchnorm import BatchNorm
from gnnhpc.models.context import Context
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from gnnhpc.models.vig.readout import FusedReadout

pytestmark = pytest.mark.skipif(not vig_kernel.available(), reason="no compiled kernel")
GRID, WIDTH, IMAGES, MICROBATCHES = (5, 7), 12, 3, 3
kinds = pytest.mark.parametrize("kind", ["grapher", "ffn", "readout"])


def built(kind: str) -> nn.Module:
    if kind == "readout":
        return FusedReadout(WIDTH, 5, dtype=torch.float32)
    if kind == "ffn":
        return FusedFfn(WIDTH, batchnorm="micro", dtype=torch.float32)
    return FusedGrapher(GRID, WIDTH, batchnorm="micro", dtype=torch.float32)


def layer(kind: str, *, adds: bool) -> nn.Module:
    torch.manual_seed(1)
    made = built(kind)
    for parameter in made.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if adds:
        add_gradients_in_place(made)
    return made


def train(made: nn.Module, *, of_input: bool = True) -> list[Tensor]:
    """Backwards of several micro-batches; the gradients of the inputs, if they are wanted."""
    draw = torch.Generator().manual_seed(2)
    found = []
    for _ in range(MICROBATCHES):
        x = torch.rand(IMAGES, GRID[0] * GRID[1], 3, generator=draw).requires_grad_(of_input)
        output = made(x, Context())
        output.backward(torch.rand(output.shape, generator=draw))
        if x.grad is not None:
            found.append(x.grad)
    return found


def gradients(made: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in made.named_parameters() if p.grad is not None}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


@kinds
@pytest.mark.parametrize("of_input", [True, False])
def test_gradients_are_autograds_to_the_bit(kind: str, of_input: bool) -> None:
    """Also in a first layer, whose input needs none."""
    ours, theirs = layer(kind, adds=True), layer(kind, adds=False)
    held = {name: p.grad for name, p in ours.named_parameters()}
    found = [train(each, of_input=of_input) for each in (ours, theirs)]
    assert len(found[0]) == (MICROBATCHES if of_input else 0)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert_same(gradients(ours), gradients(theirs))
    assert_same(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    # Views of an engine's flat buffer: it would not see others.
    assert all(p.grad is held[name] for name, p in ours.named_parameters())
    assert any(float(gradient.abs().max()) > 0 for gradient in gradients(ours).values())


@kinds
def test_who_waits_for_a_gradient_is_told_of_each_backward(kind: str) -> None:
    made = layer(kind, adds=True)
    told: dict[str, list[Tensor]] = {name: [] for name, _ in made.named_parameters()}
    for name, parameter in made.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: told[name].append(p.grad.clone())
        )
    train(made)
    for name, gradient in gradients(made).items():
        assert len(told[name]) == MICROBATCHES
        assert torch.equal(told[name][-1], gradient), name


@kinds
def test_a_frozen_parameter_and_a_changed_gradient_are_autograds(kind: str) -> None:
    """It alone leaves one out, and has a gradient to change before it is added."""
    ours, theirs = layer(kind, adds=True), layer(kind, adds=False)
    frozen = "fc1.bias" if kind == "readout" else "norm1.weight"
    for made in (ours, theirs):
        made.get_parameter(frozen).requires_grad_(False).grad = None
        made.get_parameter("fc1.weight").register_hook(lambda gradient: 2 * gradient)
        train(made)
    assert frozen not in gradients(ours)
    assert_same(gradients(ours), gradients(theirs))
    assert float(gradients(ours)["fc1.weight"].abs().max()) > 0


@kinds
def test_a_gradient_taken_away_before_the_backward_begins_at_zero(kind: str) -> None:
    """As autograd has it, also where hooks hand a copy of what was saved to the backward."""
    found = []
    for adds in (True, False):
        made = layer(kind, adds=adds)
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            output = made(torch.linspace(0, 1, 105).view(1, 35, 3), Context())
        made.zero_grad(set_to_none=True)
        output.square().sum().backward()
        found.append(gradients(made))
    assert_same(*found)


@pytest.mark.parametrize("kind", ["grapher", "ffn"])
def test_running_statistics_are_batchnorms(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = layer(kind, adds=True)
    train(ours)
    monkeypatch.setattr(BatchNorm, "moves", lambda norm, rows: False)
    theirs = layer(kind, adds=True)
    train(theirs)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, rtol=1e-6, atol=1e-7)
    assert int(ours.get_buffer("norm1.num_batches_tracked")) == MICROBATCHES


def test_a_single_row_has_no_variance() -> None:
    made = layer("ffn", adds=True)
    with pytest.raises(ValueError, match="more than 1 row"):
        made(torch.rand(1, 1, 3), Context())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["grapher", "ffn"])
def test_a_bias_that_is_no_number_reaches_the_output(kind: str, value: float) -> None:
    """Though BatchNorm takes a bias away again, its batch's mean is no number either."""
    made = layer(kind, adds=True)
    with torch.no_grad():
        made.get_parameter("fc1.bias")[0] = value
    output = made(torch.rand(IMAGES, GRID[0] * GRID[1], 3), Context())
    assert not output.isfinite().any()


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("kind", ["grapher", "ffn"])
def test_a_backward_goes_back_through_what_was_computed(kind: str, *, adds: bool) -> None:
    """Whatever the layer's BatchNorm is set to meanwhile."""
    found = []
    for eps in (None, 0.5):
        made = layer(kind, adds=adds)
        x = torch.rand(IMAGES, GRID[0] * GRID[1], 3, generator=torch.Generator().manual_seed(2))
        output = made(x.requires_grad_(), Context())
        if eps is not None:
            made.get_submodule("norm2").eps = eps
        output.square().sum().backward()
        found.append({"x": x.grad, **gradients(made)})
    assert_same(*found)
