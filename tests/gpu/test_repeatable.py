"""Our layers on a GPU give the same bits each time: nothing in them adds in an order of chance."""

from __future__ import annotations

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
from tests.tools.cells import GRAPH_MODELS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("form")]
GPU = torch.device("cuda", 0)
# Large enough that a GPU's blocks come to their sums in another order each time.
DATA = SyntheticCitation(nodes=5_000, edges=200_000, features=500)


@pytest.mark.parametrize("dense", [False, True], ids=["stored features", "dense features"])
@pytest.mark.parametrize(
    "settings", GRAPH_MODELS, ids=lambda each: "-".join(map(str, each.values()))
)
def test_the_same_bits_each_time(settings: dict[str, object], dense: bool) -> None:
    config = model_class(str(settings["name"])).model_validate(settings)  # type: ignore[union-attr]
    graph = load_graph(DATA, None)
    layers = config.outline(DATA.facts())
    (chunk,) = build_chunks(graph, 1, "halo", hops(layers)).chunks
    x = feature_rows(graph.features, chunk.nodes, torch.float32)
    there = (x.to_dense() if dense and not isinstance(x, Tensor) else x).to(GPU)
    torch.manual_seed(0)
    options = BuildOptions(torch.float32)
    model = nn.ModuleList(config.build(each, options) for each in layers)
    model.to(GPU)
    context = Context(step=3, graph=chunk.to(GPU))
    targets = torch.where(graph.masks["train"], graph.labels, IGNORED).to(GPU)

    def taken() -> list[Tensor]:
        out = there
        for layer in model:
            out = layer(out, context)
        assert isinstance(out, Tensor)
        model.zero_grad()
        functional.nll_loss(out, targets, ignore_index=IGNORED).backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    first = taken()
    for _ in range(3):
        assert all(map(torch.equal, first, taken()))
