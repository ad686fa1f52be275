"""Our layers on a GPU give the same bits each time: nothing in them adds in an order of chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.core.layer_specs import hops
from gnnhpc.data.data_settings import SyntheticCitation
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.models.model import BuildOptions, Context
from gnnhpc.models.model_registry import model_class
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from tests.tools.cells import GRAPH_MODELS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("form")]
GPU = torch.device("cuda", 0)
# Large enough that a GPU's blocks come to their sums in another order each time.
DATA = SyntheticCitation(nodes=5_000, edges=200_000, features=500)


def taken(
    layers: Sequence[nn.Module], x: Any, context: Context, loss: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """The output, and the gradients of the parameters."""
    for layer in layers:
        layer.zero_grad()
        x = layer(x, context)
    loss(x).backward()
    found = [p.grad.clone() for each in layers for p in each.parameters() if p.grad is not None]
    return [x.detach(), *found]


@pytest.mark.parametrize("dense", [False, True], ids=["stored features", "dense features"])
@pytest.mark.parametrize(
    "settings", GRAPH_MODELS, ids=lambda each: "-".join(map(str, each.values()))
)
def test_layers_of_graphs(settings: dict[str, object], dense: bool) -> None:
    config = model_class(str(settings["name"])).model_validate(settings)  # type: ignore[union-attr]
    graph = load_graph(DATA, None)
    layers = config.outline(DATA.facts())
    (chunk,) = build_chunks(graph, 1, "halo", hops(layers)).chunks
    x = feature_rows(graph.features, chunk.nodes, torch.float32)
    there = (x.to_dense() if dense and not isinstance(x, Tensor) else x).to(GPU)
    torch.manual_seed(0)
    model = [config.build(each, BuildOptions(torch.float32)).to(GPU) for each in layers]
    context = Context(step=3, graph=chunk.to(GPU))
    targets = torch.where(graph.masks["train"], graph.labels, IGNORED).to(GPU)

    def loss(out: Tensor) -> Tensor:
        return functional.nll_loss(out, targets, ignore_index=IGNORED)

    first = taken(model, there, context, loss)
    for _ in range(3):
        assert all(map(torch.equal, first, taken(model, there, context, loss)))


@pytest.mark.parametrize(
    ("fused", "arguments"),
    [(FusedGrapher, ((32, 32), 256)), (FusedFfn, (512,))],
    ids=["grapher", "ffn"],
)
def test_layers_of_vig_at_published_widths(fused: Any, arguments: Any) -> None:
    """Of 101 images; and they are those in double precision."""
    results = []
    for dtype in (torch.float64, torch.float32, torch.float32):
        torch.manual_seed(0)
        layer = fused(*arguments, batchnorm="micro", dtype=torch.float32).to(GPU, dtype)
        draw = torch.Generator().manual_seed(1)
        x = torch.rand(101, 1024, 3, generator=draw).to(GPU, dtype).requires_grad_()
        found = taken([layer], x, Context(), lambda out: out.square().sum())
        statistics = [each for each in layer.buffers() if each.is_floating_point()]
        evaluated = layer.eval()(x, Context()).detach()
        assert x.grad is not None
        results.append([found[0], torch.cat([each.flatten() for each in found[1:]])])
        results[-1] += [x.grad, *statistics, evaluated]
    exact, ours, again = results
    assert all(map(torch.equal, ours, again))
    # Gradients of parameters together: that of a bias before a normalisation is rounding.
    for one, other in zip(ours, exact, strict=True):
        assert (one.double() - other).norm() <= 1e-5 * other.norm()
