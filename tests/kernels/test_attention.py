"""Attention is PyG's, in C++ and in torch: outputs, every gradient, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnnhpc.graphs.halo_chunks import ChunkMode, build_chunks
from gnnhpc.kernels.torch import segments
from gnnhpc.models.context import Context
from gnnhpc.models.gat import Gat, Gatv2
from tests.tools.backends import computed_by, has_kernel
from tests.tools.graphs import (
    GraphModel,
    assert_same_numbers,
    forward,
    gradients,
    make_graph,
    make_model,
    relative_error,
)

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
each_model = pytest.mark.parametrize("kind", [Gat, Gatv2])


@pytest.fixture(params=["c++", "torch"])
def code(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "c++" and not has_kernel("attention"):
        pytest.skip("no compiler")
    with computed_by(request.param):
        yield request.param


def pair(config: Gat, dtype: torch.dtype, **graph: int) -> tuple[GraphModel, ...]:
    """The fused layers and PyG's, of the same parameters."""
    configs = [config.model_copy(update={"implementation": name}) for name in ("fused", "pyg")]
    return tuple(make_model(make_graph(60, 150, **graph), each, dtype) for each in configs)


@pytest.mark.usefixtures("code")
@each_model
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("heads", "hidden", "classes", "dropout"),
    [(8, 8, 3, 0.6), (4, 5, 3, 0.3), (3, 8, 15, 0.0), (1, 16, 4, 0.6), (16, 3, 2, 0.6)],
)
def test_outputs_and_gradients_are_pygs(
    kind: type[Gat], dtype: torch.dtype, heads: int, hidden: int, classes: int, dropout: float
) -> None:
    config = kind(heads=heads, hidden=hidden, dropout=dropout, layers=3)
    graph = make_graph(60, 150, classes=classes, seed=1)
    fused, reference = pair(config, dtype, classes=classes, seed=1)
    for mode, count in (("halo", 1), ("halo", 3), ("contiguous", 2)):
        chunkset = build_chunks(graph, count, mode, config.layers)
        assert_same_numbers(fused, reference, chunkset.chunks, TOLERANCE[dtype])


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("mode", ["contiguous", "halo"])
def test_padding_is_finite_and_takes_no_gradient(mode: ChunkMode) -> None:
    graph = make_graph(23, 30, seed=7)
    chunkset = build_chunks(graph, 4, mode, 2)
    assert any((chunk.nodes < 0).any() for chunk in chunkset.chunks)
    model = make_model(graph, Gat(dropout=0.0))
    for chunk in chunkset.chunks:
        x = torch.rand(chunk.rows[1], 64, dtype=torch.float64, requires_grad=True)
        out = model[4](x, Context(graph=chunk))
        assert out.isfinite().all()
        out[: chunk.own].sum().backward()
        assert x.grad is not None
        assert not x.grad[chunk.nodes[: chunk.rows[1]] < 0].any()


@pytest.mark.usefixtures("code")
def test_scores_too_large_for_exp_stay_finite() -> None:
    graph = make_graph(30, 60, seed=8)
    config = Gat(dropout=0.0)
    context = Context(graph=build_chunks(graph, 1, "halo", 2).chunks[0])
    fused, _ = pair(config, torch.float32, seed=8)
    with torch.no_grad():
        fused[1].lin.weight.mul_(1e4)

    exact, _ = pair(config, torch.float64, seed=8)
    exact.load_state_dict(fused.state_dict())
    found = forward(fused, context)
    assert found.isfinite().all()
    # A softmax is off by as much, relative to itself, as its scores are.
    assert relative_error(found.double(), forward(exact, context)) < 1e-3


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made meanwhile."""

    found = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = operation(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, torch.Tensor):
                self.found = max(self.found, each.numel())
        return made


@each_model
def test_in_torch_nothing_is_larger_than_edges_times_heads(
    kind: type[Gat], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Reddit, edges x heads x channels would be 29 GB."""
    monkeypatch.setattr(segments, "PIECE_CPU", 2_000)
    config = kind(heads=4, hidden=4, dropout=0.6)
    graph = make_graph(100, 4_000, seed=3)
    chunkset = build_chunks(graph, 1, "halo", config.layers)
    edges = len(chunkset.chunks[0].blocks[0].source)
    model = make_model(graph, config)
    with computed_by("torch"):
        gradients(model, chunkset)
        with Largest() as seen:
            gradients(model, chunkset)
    assert seen.found <= edges * 4
