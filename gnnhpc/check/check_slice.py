"""How much of an experiment the self-check works on, so that it costs about a second or two.

All micro-batches of all replicas where that is possible, of few images, or of the top left corner
of each; of a graph that is too large, some labelled nodes and their neighbours; of many small
graphs that are too many, some of each split.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs, check_outline
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.models.custom_model import CustomModel

FLOPS = 2.5e10
"""Of the twin, over all its steps: a second or two of one core in float64."""
STEPS = 2
ROWS = 2
"""Images a micro-batch, so that an image in another's place shows."""
OWN_ROWS = 8
"""Of a user's model: what BatchNorm makes of two rows is hardly more than their order, so that
rounding decides its gradient, and for a user's layers none is drawn."""
LAST_FLOPS, LAST_STEPS = 2e10, 1
"""Of the check after a run's last step."""
SEVERAL = 5
"""Images a micro-batch where not all can be: more than two threads have one each of."""
_SIDES = (16, 8)
FEWEST_NODES = 200
_STORED = 512
"""Of a node's features, at most these many are taken to be stored."""
_EDGE_FLOPS = 60.0
"""An edge's work in the twin a channel, forward and backward, in those of a dense product."""


@dataclass(frozen=True)
class CheckSlice:
    """An experiment of a few small steps of the same layers, layout, schedule and engine."""

    experiment: Experiment
    outlines: LayerSpecs
    side: int | None = None
    """Pixels of an image's side that are kept; None for all."""
    nodes: int | None = None
    """Nodes of the graph that are kept; None for all."""
    graphs: int | None = None
    """Of many small graphs, how many of each split are kept; None for all."""
    left_out: str = ""
    """What the slice is, in words; empty for a whole graph's real steps."""
    name: str = "self-check"
    """Of the check that takes its steps."""
    first: int = 0
    """The first of its training steps; after step 0 they go on from what the run holds."""

    @property
    def steps(self) -> int:
        """Its training steps."""
        return self.experiment.train_steps - self.first


def check_slice(
    experiment: Experiment, flops: float = FLOPS, steps: int = STEPS, *, whole: bool = False
) -> CheckSlice:
    """The largest slice whose twin needs at most `flops`; the smallest one where none does.

    Of images few a micro-batch, or all of them if that is not too much and `whole`.
    """
    return _largest(experiment, flops, 0, steps, whole=whole)


def last_slices(experiment: Experiment) -> list[CheckSlice]:
    """After a run's last step. Of images whole micro-batches if possible, then fewer or of smaller
    images: what depends on how many there are shows in these alone. Where those are smaller, one
    micro-batch of one or two whole images comes after."""
    first = experiment.train_steps
    part = _largest(experiment, LAST_FLOPS, first, LAST_STEPS, whole=True)
    parts = [dataclasses.replace(part, name="last self-check")]
    if part.side is not None:
        size = (experiment.batch_size or 1) // experiment.microbatches
        images = min(_rows(part.experiment), size)
        small = part.experiment.model_copy(update={"batch_size": images, "microbatches": 1})
        words = f"{images} of {size} images of 1 of {experiment.microbatches} micro-batches"
        name = "last self-check, whole images"
        layers = outline(experiment)
        parts.append(CheckSlice(small, layers, left_out=words, name=name, first=first))
    return parts


def _largest(
    experiment: Experiment, flops: float, first: int, steps: int, *, whole: bool
) -> CheckSlice:
    small = experiment.model_copy(
        update={
            "train_steps": first + steps,
            "test_steps": min(experiment.test_steps, 1),
            "test_every": None,
            "warmup_steps": 0,
            "save_every": None,
            "spans": False,
        }
    )
    layers = outline(experiment)
    kind = experiment.data.facts().kind
    if kind != "images":
        slice_of = _graph_slice if kind == "graph" else _graph_set_slice
        return dataclasses.replace(slice_of(small, layers, flops, steps), first=first)
    found = None
    for found in _image_slices(small, layers, whole=whole, cropped=first > 0):
        images = (found.experiment.batch_size or 0) * experiment.layout.replicas
        if images * (3 * steps + 1) * _image_flops(found.outlines) <= flops:
            break
    assert found is not None
    return dataclasses.replace(found, first=first)


def _rows(experiment: Experiment) -> int:
    return OWN_ROWS if isinstance(experiment.model, CustomModel) else ROWS


def _image_slices(
    small: Experiment, layers: LayerSpecs, *, whole: bool, cropped: bool
) -> Iterator[CheckSlice]:
    """From the most to the least; `whole` micro-batches before others, `cropped` images too."""
    facts = small.data.facts()
    batch = small.batch_size or small.microbatches
    full = batch // small.microbatches
    rows = min(_rows(small), full)
    # The interleaved schedule takes multiples of the stages.
    more = small.layout.stages if small.schedule == "interleaved" else 1
    fewer = min(small.microbatches, small.layout.stages + more)
    # A user's own model may take images of one size only.
    smaller = () if isinstance(small.model, CustomModel) else _SIDES
    sides = [None, *(side for side in smaller if side < facts.image_size)]
    sizes = [(small.microbatches, rows), (small.microbatches, 1), (fewer, 1)]
    choices = [(count, each, side) for count, each in sizes for side in sides]
    if whole:
        several = min(SEVERAL, full)
        sizes = [(small.microbatches, full), (fewer, full), (fewer, several)]
        larger = [(count, each, side) for count, each in sizes for side in sides]
        choices = [*(larger if cropped else larger[:1]), *choices]
    for microbatches, each, side in choices:
        update = {"batch_size": microbatches * each, "microbatches": microbatches}
        outlines = layers
        if side is not None:
            smaller_facts = dataclasses.replace(facts, image_size=side)
            model = small.model.outline(smaller_facts)
            outlines = check_outline(model, smaller_facts, f"model {small.model.name}")
        words = f"{each} of {full} images a micro-batch"
        if microbatches < small.microbatches:
            words += f", {microbatches} of {small.microbatches} micro-batches"
        if side is not None:
            words += f", {side} x {side} pixels of each"
        yield CheckSlice(small.model_copy(update=update), outlines, side, left_out=words)


def _image_flops(layers: Sequence[LayerSpec]) -> float:
    """Forward, of one image: each layer's parameters are used at each of its nodes."""
    return sum(
        2.0 * (layer.parameters or math.prod(layer.shape)) * layer.inputs[0] for layer in layers
    )


def _graph_slice(small: Experiment, layers: LayerSpecs, flops: float, steps: int) -> CheckSlice:
    facts = small.data.facts()
    degree = facts.edges / max(facts.nodes, 1)
    node = sum(_node_flops(layer, degree) for layer in layers)
    # A sampled mini-batch reaches all nodes of so few; each micro-batch does.
    pieces = small.total_chunks if small.sampling is not None else 1
    nodes = math.floor(flops / (node * (3 * steps * pieces + 1)))
    # Of the nodes that are kept a twelfth are to train on.
    least = 24 * small.total_chunks if small.sampling is not None else 8 * small.total_chunks
    nodes = max(nodes, FEWEST_NODES, least)
    if nodes >= facts.nodes:
        return CheckSlice(small, layers)
    if small.batch_size is not None:
        # So few nodes may have few links, of which a split has more of this part than of the whole.
        part = 12 if small.task is None else 24
        seeds = min(small.batch_size, nodes // part // small.layout.replicas)
        update: dict[str, Any] = {"batch_size": seeds}
        if small.task is not None:
            few = {"hits": 1, "val_share": 0.25, "test_share": 0.25}
            update["task"] = small.task.model_copy(update=few)
        small = small.model_copy(update=update)
    return CheckSlice(small, layers, nodes=nodes, left_out=f"{nodes} of {facts.nodes} nodes")


def _graph_set_slice(small: Experiment, layers: LayerSpecs, flops: float, steps: int) -> CheckSlice:
    facts = small.data.facts()
    degree = facts.edges / max(facts.nodes, 1)
    node = sum(_node_flops(layer, degree) for layer in layers)
    affordable = flops / (node * facts.nodes / facts.graphs)
    replicas, batch = small.layout.replicas, small.batch_size or 1
    if 3 * steps * batch * replicas + facts.val + facts.test <= affordable:
        return CheckSlice(small, layers)
    # Two splits are evaluated; of the third a step takes what there is, if need be.
    most = math.floor(affordable / (3 * steps + 2))
    graphs = min(max(most, small.total_chunks), facts.train)
    fewer = small.model_copy(update={"batch_size": min(batch, graphs // replicas)})
    words = f"{graphs} of the {facts.train} graphs to train on and as many of other splits"
    return CheckSlice(fewer, layers, graphs=graphs, left_out=words)


def _node_flops(layer: LayerSpec, degree: float) -> float:
    """Forward, of one node: a dense product, and its edges. Wide features are mostly zeros."""
    inputs = layer.inputs[0]
    width = layer.shape[0] if layer.parameters is None else layer.parameters / inputs
    return 2.0 * min(inputs, _STORED) * width + degree * width * _EDGE_FLOPS
