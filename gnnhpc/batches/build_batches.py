"""Chooses the source of mini-batches by the kind of data."""

from __future__ import annotations

from typing import Any

from gnnhpc.batches.batch import Batches, BatchPlan


def build_batches(plan: BatchPlan, data: Any = None) -> Batches:
    """The mini-batches of `data`, images by split or a graph or a set of graphs, or of this rank's
    own, which are loaded; raises InputError for data that are missing or damaged."""
    kind = plan.experiment.data.facts().kind
    if kind == "images":
        from gnnhpc.batches.image_batches import ImageBatches

        return ImageBatches(plan, data)
    if kind == "graphs":
        from gnnhpc.batches.graph_set_batches import GraphSetBatches

        return GraphSetBatches(plan, data)
    if plan.experiment.sampling is not None:
        from gnnhpc.batches.sampled.sampled_batches import SampledBatches

        return SampledBatches(plan, data)
    from gnnhpc.batches.chunk_batches import ChunkBatches

    return ChunkBatches(plan, data)
