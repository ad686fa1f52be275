"""What a stage keeps on its device of a graph's chunks: what its layers use, and no more."""

from __future__ import annotations

import torch

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.stage_cut import outline
from tests.tools.cells import gat

EXPERIMENT = gat(layout="pp3", microbatches=2, chunks="halo", model={"name": "gat", "layers": 3})


def batches_of(stage: int) -> ChunkBatches:
    mesh = Mesh(Layout(1, 3), stage, torch.device("meta"))
    return ChunkBatches(BatchPlan(EXPERIMENT, outline(EXPERIMENT), mesh, None))


def test_features_are_the_first_stages_and_labels_the_lasts() -> None:
    for stage in range(3):
        with batches_of(stage).open("train", 0, 1) as batches:
            (batch,) = batches
        for microbatch in batch.microbatches:
            assert (microbatch.inputs is not None) == (stage == 0)
            assert set(microbatch.targets) == ({"train"} if stage == 2 else set())
            assert bool(microbatch.context.chunk.targets) == (stage == 2)


def test_the_example_for_a_profile_has_its_labels() -> None:
    example = batches_of(0).example()
    assert example.inputs is not None
    assert set(example.targets) == {"train"}
    assert example.targets["train"].device.type == "meta"
