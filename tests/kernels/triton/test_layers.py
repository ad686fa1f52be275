"""Where a GPU's kernels run, layers compute with them alone, to the values of torch's forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.layer_specs import hops
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.kernels.compile import counted_calls
from gnnhpc.models.context import Context
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.model_registry import model_class
from tests.tools.backends import computed_by
from tests.tools.graphs import make_graph

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Triton's interpreter takes tensors of a CPU, its compiled programs those of a GPU."""
DTYPE = torch.float64
GRAPH = make_graph(20, 60, seed=7)
FACTS = Facts(kind="graph", features=12, classes=3, nodes=20, edges=GRAPH.edges.shape[1])
MODELS: list[dict[str, Any]] = [
    {"name": "gat", "hidden": 3, "heads": 2},
    {"name": "gatv2", "hidden": 3, "heads": 2},
    {"name": "gcn", "hidden": 5},
    {"name": "sage", "hidden": 5, "aggregator": "mean"},
    {"name": "sage", "hidden": 5, "aggregator": "max"},
    {"name": "gin", "hidden": 5},
]


def taken(settings: dict[str, Any], form: str, *, dense: bool) -> tuple[list[Tensor], set[str]]:
    """Output and gradients of a training step, and which code computed them."""
    config = model_class(settings["name"]).model_validate(settings)  # type: ignore[union-attr]
    layers = config.outline(FACTS)
    (chunk,) = build_chunks(GRAPH, 1, "halo", hops(layers)).chunks
    chunk = chunk.to(torch.device(DEVICE))
    x = feature_rows(GRAPH.features, chunk.nodes.cpu(), DTYPE).to(DEVICE)
    if dense and not isinstance(x, Tensor):
        x = x.to_dense()
    torch.manual_seed(0)
    model = nn.ModuleList(config.build(each, BuildOptions(DTYPE)) for each in layers).to(DEVICE)
    context, out = Context(step=3, graph=chunk), x
    before = counted_calls()
    with computed_by(form):  # type: ignore[arg-type]
        for layer in model:
            out = layer(out, context)
        targets = torch.where(GRAPH.masks["train"], GRAPH.labels, IGNORED).to(DEVICE)
        functional.nll_loss(out, targets, ignore_index=IGNORED).backward()
    found = [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return found, {code for code, _ in counted_calls() - before}


@pytest.mark.quick("gcn-5-stored", "gin-5-dense", "sage-5-max-dense", "sage-5-mean-dense")
@pytest.mark.parametrize("dense", [False, True], ids=["stored", "dense"])
@pytest.mark.parametrize("settings", MODELS, ids=lambda each: "-".join(map(str, each.values())))
def test_a_step_is_that_of_the_forms_in_torch(settings: dict[str, Any], dense: bool) -> None:
    found, code = taken(settings, "triton", dense=dense)
    expected, in_torch = taken(settings, "torch", dense=dense)
    assert (code, in_torch) == ({"triton"}, set())
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
