"""The last layers of a model that classifies graphs: pooling, linear, log-softmax.

It imports torch in `build_readout` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.models.graph_model import Implementation, build_implementation, layer_spec

if TYPE_CHECKING:
    from torch import nn

Pooling = Literal["mean", "sum"]
"""Over all nodes of a graph; Xu et al. 2019, section 4.2, compare how well they separate graphs."""
READOUT = "readout."
"""The prefix of these layers' names."""


def readout(width: int, facts: Facts) -> LayerSpecs:
    """The layers from nodes' rows [width] to log-probabilities of graphs [classes]."""
    classes = facts.classes
    # Costs are for each node, and there are fewer rows after the pooling.
    share = facts.graphs / max(facts.nodes, 1)
    cost, parameters = 2.0 * width * classes * share, width * classes + classes
    last = layer_spec(
        f"{READOUT}log_softmax", classes, classes, "log_softmax", 8.0 * classes * share
    )
    return (
        layer_spec(f"{READOUT}pooling", width, width, "pooling", 2.0 * width, rows="pool"),
        layer_spec(f"{READOUT}linear", width, classes, "linear", cost, parameters=parameters),
        last,
    )


def build_readout(
    layer: LayerSpec, pooling: Pooling, implementation: Implementation
) -> nn.Module | None:
    """The pooling or the linear layer; None for another layer."""
    from gnnhpc.models.layers.linear import Linear

    match layer.kind:
        case "pooling":
            return build_implementation(implementation, "Pooling", pooling)
        case "linear":
            return Linear(layer.inputs[0], layer.shape[0])
    return None


def pooling_misfit(pooling: Pooling, kind: Kind) -> str | None:
    """The text of `Model.misfit_of_data` for a pooling of data without graphs to pool."""
    if kind == "graphs" or pooling == "mean":
        return None
    return f"model.pooling: found {pooling!r}; allowed: none where nodes are classified"
