"""Which twin an attention network's layer has."""

from __future__ import annotations

from gnnhpc.check.twin.gat import Attention, Dropout, Elu, LogSoftmax
from gnnhpc.check.twin.gatv2 import AttentionV2
from gnnhpc.check.twin.layer import TwinLayer
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.gat import Gat, Gatv2


def layer(model: Gat, outline: LayerSpec) -> TwinLayer:
    """One layer of a GAT or GATv2 in plain torch."""
    last = outline.number == model.layers - 1
    if outline.kind == "dropout":
        return Dropout(outline.name, model.dropout)
    if outline.kind == "attention":
        channels = outline.shape[0] if last else model.hidden
        kind = AttentionV2 if isinstance(model, Gatv2) else Attention
        inputs = outline.inputs[0]
        return kind(outline.name, inputs, model.heads, channels, last, model.dropout)
    return LogSoftmax() if last else Elu()
