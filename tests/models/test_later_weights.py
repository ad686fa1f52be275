"""Gradients of weights left for later are those of a whole backward, layer for layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.kernels.build import load_kernel
from gnnhpc.models.context import Context
from gnnhpc.models.later_weights import (
    LaterWeights,
    LeavesWeights,
    LeftGradient,
    apart,
    leaves_weights,
    leaving,
)
from tests.models.test_layer_implementations import MODELS
from tests.tools.graphs import forward, make_graph, make_model


def built(name: str, *, sparse: bool) -> tuple[nn.Module, Context]:
    graph = make_graph(60, 150, features=12, classes=5, sparse=sparse, seed=1)
    model = make_model(graph, MODELS[name], torch.float64, seed=3)
    layers = MODELS[name].layers  # type: ignore[attr-defined]
    (chunk,) = build_chunks(graph, 1, "halo", layers).chunks
    return model, Context(graph=chunk, seed=4, step=9)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With our kernels, and as where there is no compiler."""
    if not request.param:
        monkeypatch.setenv("GNNHPC_KERNELS", "off")
    load_kernel.cache_clear()
    yield
    load_kernel.cache_clear()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_both_halves_are_the_whole(name: str, sparse: bool) -> None:
    """Twice over, as gradients of micro-batches add up; nothing is left but what a layer says."""
    model, context = built(name, sparse=sparse)
    forward(model, context).square().sum().backward()
    forward(model, context).square().sum().backward()
    wanted = gradients(model)
    model.zero_grad(set_to_none=False)
    added: Counter[str] = Counter()
    for name_of, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name_of: added.update([n]))
    told: list[LeftGradient] = []
    halves = []
    for _ in range(2):
        later = LaterWeights(lambda: "some layer", [told.append])
        with apart():
            loss = forward(model, context).square().sum()
        with leaving(later):
            loss.backward()
        halves.append(later)
    says_so = [m for m in model.modules() if isinstance(m, LeavesWeights)]
    assert len(halves[0].left) == len(halves[1].left) >= len(says_so)
    assert [id(each) for each in told] == [id(each) for h in halves for each in h.left]
    before = gradients(model)
    for layer in says_so:
        matrices = [p for p in layer.parameters() if p.ndim == 2]
        assert any(not p.grad.any() for p in matrices if p.grad is not None), layer
    for later in halves:
        for left in later.left:
            with torch.no_grad():
                gradient = left.compute()
            left.weight.backward(gradient)
    found = gradients(model)
    assert found.keys() == wanted.keys() == before.keys()
    for each, value in found.items():
        assert torch.allclose(value, wanted[each], rtol=1e-12, atol=1e-12), each
    # Hooks are told of each gradient once.
    assert set(added.values()) == {2}


def test_nothing_is_left_unasked() -> None:
    model, context = built("gcn", sparse=True)
    later = LaterWeights(lambda: None)
    loss = forward(model, context).sum()
    with leaving(later):
        loss.backward()
    assert not later.left
    assert all(p.grad is not None and p.grad.any() for p in model.parameters() if p.ndim == 2)


def test_layers_whose_weights_are_frozen_leave_none() -> None:
    """A stage of such layers has nothing to compute apart, and is not to be blamed for it."""
    model, context = built("gcn", sparse=False)
    assert leaves_weights(model)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim == 1)
    assert not leaves_weights(model)
    later = LaterWeights(lambda: None)
    with apart():
        loss = forward(model, context).sum()
    with leaving(later):
        loss.backward()
    assert not later.left


def test_a_gradient_that_nobody_takes_is_no_silent_loss() -> None:
    model, context = built("gcn", sparse=False)
    with apart():
        loss = forward(model, context).sum()
    with pytest.raises(RuntimeError, match="nobody takes it"):
        loss.backward()
