"""From an experiment and a process's place to the batches it works on."""

from __future__ import annotations

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.plan import BatchPlan


def build_batches(plan: BatchPlan) -> Batches:
    """Load this rank's data; raises InputError for what is missing or damaged."""
    if plan.experiment.data.facts().kind == "images":
        from gnnhpc.batches.images import ImageBatches

        return ImageBatches(plan)
    from gnnhpc.batches.chunks import ChunkBatches

    return ChunkBatches(plan)
