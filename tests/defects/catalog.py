"""All defects that are planted into a run's code; importing this registers them."""

from __future__ import annotations

from tests.defects.defect import DEFECTS
from tests.defects.plants import (
    again,
    between,
    buckets,
    counts,
    evaluation,
    exchanged_parts,
    generators,
    graph_sets,
    graphs,
    initial_values,
    inputs,
    large_graphs,
    late,
    layers,
    links,
    machine,
    masks,
    optimizer,
    order,
    parts,
    reported,
    sampled,
    scaling,
    several_parts,
    shared_memory,
    split_backward,
    there_and_back,
    timing,
    told,
    transfers,
)

__all__ = ["DEFECTS", "KINDS", "exchanged_parts"]

KINDS = (
    *(
        optimizer.KIND,
        initial_values.KIND,
        generators.KIND,
        transfers.KIND,
        shared_memory.KIND,
        several_parts.KIND,
        split_backward.KIND,
        there_and_back.KIND,
        buckets.KIND,
        scaling.KIND,
        inputs.KIND,
        order.KIND,
    ),
    *(
        graphs.KIND,
        layers.KIND,
        masks.KIND,
        evaluation.KIND,
        between.KIND,
        late.KIND,
        reported.KIND,
    ),
    *(again.KIND, sampled.KIND, large_graphs.KIND, links.KIND, graph_sets.KIND),
    *(timing.KIND, parts.KIND, counts.KIND, told.KIND, machine.KIND),
    *("mixed codes, sites, machines", "checkpoints", "damaged and foreign records"),
)
"""Classes of defects, in the order of the matrix."""
