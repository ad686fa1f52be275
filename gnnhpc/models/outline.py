"""A model on paper: its layers in order, with shapes, parameters and costs, before any is built.

Enough to cut a model into stages on a login node, to check what was built, and to know the shape
of what crosses each cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gnnhpc.core.balance import deal, stage_slices
from gnnhpc.core.errors import InputError
from gnnhpc.core.facts import Facts
from gnnhpc.spec.experiment import Experiment, GatConfig, ModelConfig, VigConfig

LayerKind = Literal["grapher", "ffn", "readout", "dropout", "attention", "elu", "log_softmax"]


@dataclass(frozen=True)
class LayerOutline:
    """One layer: `shape` is its output a row (an image or a node), `cost` relative seconds a row.

    `group` is what timings are summed over and Raffi's tables name: a block, the readout.
    """

    index: int
    name: str
    kind: LayerKind
    group: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    parameters: int
    cost: float


def outline(model: ModelConfig, facts: Facts) -> tuple[LayerOutline, ...]:
    """The layers of `model` on data of these sizes."""
    if isinstance(model, VigConfig):
        return _vig(model, facts)
    return _gat(model, facts)


# Seconds of a hidden unit's GELU, forward and backward, in multiply-adds: it outweighs the thin
# products around it once those no longer touch memory.
_GELU = 24.0
# The rest of a collapsed Grapher a hidden unit, so that FFN : Grapher is the 1.36 that a profile
# (balance: profile) gives on one thread from 20 images on.
_FOLDED = 17.0


def _vig(model: VigConfig, facts: Facts) -> tuple[LayerOutline, ...]:
    nodes, channels = facts.image_size**2, facts.features
    g, f, r = model.grapher_width, model.ffn_width, model.readout_width
    # Linear c->g, BatchNorm, GraphConv (two g x g products, one bias), Linear g->c, BatchNorm.
    grapher = (
        (channels * g + g) + 2 * g + (2 * g * g + g) + (g * channels + channels) + 2 * channels
    )
    ffn = (channels * f + f) + 2 * f + (f * channels + channels) + 2 * channels
    if model.implementation == "reference":
        grapher_cost = nodes * (2.0 * g * g + g * (2 * channels + _GELU) + 8 * 3 * g)
    else:
        grapher_cost = nodes * g * (_FOLDED + channels + _GELU)
    ffn_cost = nodes * f * (2 * channels + _GELU)
    layers: list[LayerOutline] = []

    def add(name: str, kind: LayerKind, group: str, parameters: int, cost: float) -> None:
        shape = (facts.classes,) if kind == "readout" else (nodes, channels)
        layers.append(
            LayerOutline(len(layers), name, kind, group, (nodes, channels), shape, parameters, cost)
        )

    for block in range(model.blocks):
        add(f"block{block}.grapher", "grapher", f"block{block}", grapher, grapher_cost)
        add(f"block{block}.ffn", "ffn", f"block{block}", ffn, ffn_cost)
    readout = (channels * r + r) + (r * facts.classes + facts.classes)
    add("readout", "readout", "readout", readout, nodes * channels + r * (channels + 10 + _GELU))
    return tuple(layers)


def _gat(model: GatConfig, facts: Facts) -> tuple[LayerOutline, ...]:
    layers: list[LayerOutline] = []
    degree = facts.edges / max(facts.nodes, 1) + 1
    width = facts.features

    def add(name: str, kind: LayerKind, group: str, out: int, parameters: int, cost: float) -> None:
        layers.append(
            LayerOutline(len(layers), name, kind, group, (width,), (out,), parameters, cost)
        )

    for layer in range(model.layers):
        last = layer == model.layers - 1
        channels = facts.classes if last else model.hidden
        hidden = model.heads * channels
        out = channels if last else hidden
        group = f"layer{layer}"
        # Weight, two attention vectors, bias (all heads' if concatenated, one's if averaged).
        parameters = width * hidden + 2 * hidden + out
        cost = 2.0 * width * hidden + degree * (2 * hidden + 8 * model.heads)
        add(f"{group}.dropout", "dropout", group, width, 0, 4.0 * width)
        add(f"{group}.attention", "attention", group, out, parameters, cost)
        width = out
        kind: LayerKind = "log_softmax" if last else "elu"
        add(f"{group}.{kind}", kind, group, width, 0, 8.0 * width)
    return tuple(layers)


def cut(
    experiment: Experiment,
    layers: Sequence[LayerOutline] | None = None,
    costs: Sequence[float] | None = None,
    transfer: Sequence[float] | None = None,
    where: object = "spec",
) -> list[range]:
    """Which layers each stage holds.

    `costs` and `transfer` (of handing a layer's output on) replace the outline's own, in seconds
    of a profile; a given `balance` beats both. Raises
    InputError for more stages than layers, or a balance that does not add up.
    """
    if layers is None:
        layers = outline(experiment.model, experiment.data.facts())
    stages = experiment.layout.stages
    if stages > len(layers):
        raise InputError(
            where, "layout", experiment.layout, f"at most {len(layers)} stages, one a layer"
        )
    if isinstance(experiment.balance, tuple):
        if sum(experiment.balance) != len(layers):
            raise InputError(
                where, "balance", list(experiment.balance), f"counts that add up to {len(layers)}"
            )
        return stage_slices(experiment.balance)
    return stage_slices(deal(costs or [layer.cost for layer in layers], stages, transfer))
