"""Deferred gradients of weights are those of a whole backward."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels.dispatch import Backend
from gnnhpc.models.layers.split_backward import DeferredGradient, deferring_to, split_backward
from gnnhpc.models.model import Context
from tests.tools.backends import computed_by
from tests.tools.graphs import MODELS, forward, make_graph, make_model


def built(name: str, *, sparse: bool) -> tuple[nn.Module, Context]:
    graph = make_graph(60, 150, features=12, classes=5, sparse=sparse, seed=1)
    model = make_model(graph, MODELS[name], torch.float64, seed=3)
    layers = MODELS[name].layers  # type: ignore[attr-defined]
    (chunk,) = build_chunks(graph, 1, "halo", layers).chunks
    return model, Context(graph=chunk, seed=4, step=9)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("code", ["c++", "torch"])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_both_halves_are_the_whole(name: str, sparse: bool, code: Backend) -> None:
    """Twice, as gradients of micro-batches add up; hooks of parameters are called once each."""
    model, context = built(name, sparse=sparse)
    added: Counter[str] = Counter()
    halves: list[list[DeferredGradient]] = [[], []]
    with computed_by(code):
        for _ in range(2):
            forward(model, context).square().sum().backward()
        expected = gradients(model)
        model.zero_grad(set_to_none=False)
        for name_of, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, n=name_of: added.update([n]))
        for half in halves:
            with split_backward():
                loss = forward(model, context).square().sum()
            with deferring_to(half):
                loss.backward()
        assert len(halves[0]) == len(halves[1]) > 0
        assert any(not p.grad.any() for p in model.parameters() if p.grad is not None)
        for deferred in (each for half in halves for each in half):
            with torch.no_grad():
                gradient = deferred.compute()
            deferred.weight.backward(gradient)
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    for each, value in actual.items():
        assert torch.allclose(value, expected[each], rtol=1e-12, atol=1e-12), each
    assert set(added.values()) == {2}


def test_a_deferred_gradient_cannot_be_lost() -> None:
    model, context = built("gcn", sparse=False)
    with split_backward():
        loss = forward(model, context).sum()
    with pytest.raises(RuntimeError, match="outside of deferring_to"):
        loss.backward()
