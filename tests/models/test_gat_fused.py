"""The fused attention computes PyG's function: outputs and every gradient, kernel or plain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnnhpc.graphs.halo_chunks import ChunkMode, build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels import segments
from gnnhpc.models.context import Context
from gnnhpc.models.gat import Gat
from gnnhpc.models.layers.attention_layers import AttentionSettings
from gnnhpc.models.layers.attention_layers import GatLayer as FusedAttention
from gnnhpc.models.layers.pyg_layers import GatLayer as ReferenceAttention
from tests.tools.graphs import (
    forward,
    gradients,
    make_graph,
    make_model,
    relative_error,
    worst_layer_error,
)
from tests.tools.rounding import assert_within, tolerances

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(params=["kernel", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways through the fused layer, whether or not there is a compiler."""
    if request.param == "plain":
        monkeypatch.setattr(kernel, "fits", lambda x: False)
    elif not kernel.fits(torch.zeros(1)):
        pytest.skip("no compiler")
    return str(request.param)


def twins(config: Gat, dtype: torch.dtype, **graph: int) -> tuple[torch.nn.ModuleList, ...]:
    models = []
    for implementation in ("fused", "pyg"):
        twin = config.model_copy(update={"implementation": implementation})
        models.append(make_model(make_graph(60, 150, **graph), twin, dtype))
    return tuple(models)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("heads", "hidden", "classes", "dropout"),
    [
        (8, 8, 3, 0.6),
        (8, 16, 7, 0.0),
        (4, 5, 3, 0.3),
        (3, 8, 15, 0.6),
        (1, 16, 4, 0.6),
        (16, 3, 2, 0.6),
    ],
)
def test_outputs_and_gradients_are_pygs(
    path: str, dtype: torch.dtype, heads: int, hidden: int, classes: int, dropout: float
) -> None:
    config = Gat(heads=heads, hidden=hidden, dropout=dropout, layers=3)
    graph = make_graph(60, 150, classes=classes, seed=1)
    fused, reference = twins(config, dtype, classes=classes, seed=1)
    for mode, count in (("halo", 1), ("halo", 3), ("contiguous", 2)):
        chunkset = build_chunks(graph, count, mode, config.layers)
        for chunk in chunkset.chunks:
            context = Context(graph=chunk, seed=4, step=9)
            real = chunk.nodes[: chunk.rows[-1]] >= 0
            found, expected = (forward(model, context)[real] for model in (fused, reference))
            assert relative_error(found, expected) < TOLERANCE[dtype]
        _, found_gradients = gradients(fused, chunkset, seed=4, step=9)
        _, expected_gradients = gradients(reference, chunkset, seed=4, step=9)
        assert worst_layer_error(found_gradients, expected_gradients) < (TOLERANCE[dtype], "")


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_sparse_and_dense_features_and_evaluation(path: str, sparse: bool, training: bool) -> None:
    graph = make_graph(60, 150, sparse=sparse, seed=2)
    chunkset = build_chunks(graph, 2, "halo", 2)
    fused, reference = (model.train(training) for model in twins(Gat(), torch.float64, seed=2))
    loss, found = gradients(fused, chunkset)
    expected_loss, expected = gradients(reference, chunkset)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert worst_layer_error(found, expected) < (1e-10, "")


def test_one_seed_starts_both_alike() -> None:
    fused, reference = twins(Gat(layers=3), torch.float32, seed=0)
    found, expected = fused.state_dict(), reference.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_gradient_of_a_dense_input_is_pygs(path: str) -> None:
    # As at a stage boundary: the activation comes from another rank and sends a gradient back.
    (chunk,) = build_chunks(make_graph(40, 80, seed=5), 1, "halo", 2).chunks
    results = []
    for kind in (FusedAttention, ReferenceAttention):
        torch.manual_seed(0)
        layer = kind(AttentionSettings("layer1.attention", 1, 10, 4, 8, True, 0.6)).double()
        x = torch.rand(40, 10, dtype=torch.float64, requires_grad=True)
        (layer(x, Context(graph=chunk)) ** 2).sum().backward()
        results.append(x.grad)
    assert relative_error(*results) < 1e-10


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_more_than_rounding_and_repeat_bitwise(threads: int) -> None:
    graph = make_graph(60, 150, seed=6)
    chunkset = build_chunks(graph, 2, "halo", 2)
    model = make_model(graph, Gat(), torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        _, expected = gradients(model, chunkset)
        torch.set_num_threads(threads)
        _, found = gradients(model, chunkset)
        _, again = gradients(model, chunkset)
    finally:
        torch.set_num_threads(before)
    assert worst_layer_error(found, expected) < (1e-5, "")
    assert all(torch.equal(found[name], again[name]) for name in expected)


@pytest.mark.parametrize("mode", ["contiguous", "halo"])
def test_padding_is_finite_and_takes_no_gradient(path: str, mode: ChunkMode) -> None:
    graph = make_graph(23, 30, seed=7)
    chunkset = build_chunks(graph, 4, mode, 2)
    assert any((chunk.nodes < 0).any() for chunk in chunkset.chunks)
    model = make_model(graph, Gat(dropout=0.0))
    for chunk in chunkset.chunks:
        layer = model[4]
        x = torch.rand(chunk.rows[1], 64, dtype=torch.float64, requires_grad=True)
        out = layer(x, Context(graph=chunk))
        assert out.isfinite().all()
        out[: chunk.own].sum().backward()
        padding = chunk.nodes[: chunk.rows[1]] < 0
        assert not x.grad[padding].any()


def test_scores_too_large_for_exp_stay_finite(path: str) -> None:
    graph = make_graph(30, 60, seed=8)
    config = Gat(dropout=0.0)
    context = Context(graph=build_chunks(graph, 1, "halo", 2).chunks[0])
    fused, _ = twins(config, torch.float32, seed=8)
    with torch.no_grad():
        fused[1].lin.weight.mul_(1e4)

    def reference() -> torch.nn.ModuleList:
        _, model = twins(config, torch.float64, seed=8)
        model.load_state_dict(fused.state_dict())
        return model

    found = forward(fused, context).detach()
    assert found.isfinite().all()
    exact, allowed = tolerances(
        reference,
        lambda model: {"out": forward(model, context).detach()},
        lambda name: config.heads * config.hidden,
    )
    assert_within({"out": found}, exact, allowed)
    assert allowed["out"] < 1e-3 * float(exact["out"].abs().max())


def test_a_graph_without_edges_has_its_self_loops(path: str) -> None:
    graph = make_graph(10, 0, seed=9)
    (chunk,) = build_chunks(graph, 1, "halo", 2).chunks
    layer = make_model(graph, Gat(dropout=0.0))[1]
    features = graph.features.to_dense().double()
    expected = features @ layer.lin.weight.t() + layer.bias
    x = feature_rows(graph.features, chunk.nodes, torch.float64)
    found = layer(x, Context(graph=chunk))
    assert relative_error(found, expected) < 1e-12


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


def test_in_plain_torch_nothing_is_larger_than_edges_times_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of Reddit, edges x heads x channels would be 29 GB; the reference is the opposite."""
    monkeypatch.setattr(kernel, "fits", lambda x: False)
    monkeypatch.setattr(segments, "PIECE_CPU", 2_000)
    config = Gat(heads=4, hidden=4, dropout=0.6)
    graph = make_graph(100, 4_000, seed=3)
    chunkset = build_chunks(graph, 1, "halo", config.layers)
    edges = len(chunkset.chunks[0].blocks[0].source)
    largest = {}
    for implementation in ("fused", "pyg"):
        model = make_model(graph, config.model_copy(update={"implementation": implementation}))
        gradients(model, chunkset)
        with Largest() as seen:
            gradients(model, chunkset)
        largest[implementation] = seen.found
    assert largest["pyg"] >= edges * 4 * 4
    assert largest["fused"] <= edges * 4


@pytest.mark.parametrize("numbers", [1, 300, 2**20])
def test_pieces_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    """One edge a piece, some, and all."""
    monkeypatch.setattr(kernel, "fits", lambda x: False)
    monkeypatch.setattr(segments, "PIECE_CPU", numbers)
    graph = make_graph(40, 200, seed=11)
    chunkset = build_chunks(graph, 2, "halo", 2)
    fused, reference = twins(Gat(), torch.float64, seed=11)
    loss, found = gradients(fused, chunkset)
    expected_loss, expected = gradients(reference, chunkset)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert worst_layer_error(found, expected) < (1e-10, "")
