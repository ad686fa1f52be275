"""Chooses the source of mini-batches by the kind of data."""

from __future__ import annotations

from gnnhpc.batches.batch import Batches, BatchPlan


def build_batches(plan: BatchPlan) -> Batches:
    """Load this rank's data; raises InputError for data that are missing or damaged."""
    kind = plan.experiment.data.facts().kind
    if kind == "images":
        from gnnhpc.batches.image_batches import ImageBatches

        return ImageBatches(plan)
    if kind == "graphs":
        from gnnhpc.batches.graph_set_batches import GraphSetBatches

        return GraphSetBatches(plan)
    if plan.experiment.sampling is not None:
        from gnnhpc.batches.sampled.sampled_batches import SampledBatches

        return SampledBatches(plan)
    from gnnhpc.batches.chunk_batches import ChunkBatches

    return ChunkBatches(plan)
