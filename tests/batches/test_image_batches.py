"""Which images a step trains on, and the thread that prepares them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.image_batches import ImageBatches, content_checksum, epoch_indices
from gnnhpc.data.cifar10_images import Images, load_images
from gnnhpc.data.data_settings import SyntheticCifar10
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.stage_cut import outline
from tests.tools.cells import vig

PLANS = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 40)).map(
    lambda plan: (plan[0], plan[1], plan[0] * plan[1] + plan[2])
)
SEEDS = st.integers(0, 2**32)


def small_images() -> Images:
    return load_images(SyntheticCifar10(train=23, image_size=5), None, "train")


@given(PLANS, SEEDS, st.integers(0, 100))
def test_replicas_share_what_one_process_would_see(
    plan: tuple[int, int, int], seed: int, step: int
) -> None:
    replicas, batch, samples = plan
    parts = [epoch_indices(samples, batch, replicas, r, seed, step)[1] for r in range(replicas)]
    alone = epoch_indices(samples, batch * replicas, 1, 0, seed, step)[1]
    assert np.array_equal(np.concatenate(parts), alone)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(0, 5), st.integers(0, 6), st.booleans(), st.integers(0, 3))
def test_mini_batches_have_the_images_of_their_indices(
    replicas: int, start: int, count: int, first_stage: bool, seed: int
) -> None:
    images = small_images()
    data = {"name": "synthetic-cifar10", "train": 23, "image_size": 5}
    layout = f"dp{replicas}-pp2"
    experiment = vig(data=data, layout=layout, batch_size=4, microbatches=2, seed=seed)
    experiment = experiment.model_copy(update={"test_steps": 0})
    rank = 2 * (replicas - 1) + (not first_stage)
    mesh = Mesh(experiment.layout, rank, torch.device("cpu"))
    batches = ImageBatches(BatchPlan(experiment, outline(experiment), mesh, None))
    steps = range(start, start + count)
    with batches.open("train", start, start + count) as opened:
        for step, batch in zip(steps, opened, strict=True):
            epoch, indices = epoch_indices(23, 4, replicas, replicas - 1, seed, step)
            assert batch.epoch == epoch
            assert np.array_equal(batch.sample_ids, indices)
            assert batch.checksum == content_checksum(images, indices)
            inputs = [each.inputs for each in batch.microbatches]
            labels = [each.targets["train"] for each in batch.microbatches if each.targets]
            if first_stage:
                nodes = torch.from_numpy(images.take(indices)).flatten(2).transpose(1, 2) / 255
                assert torch.equal(torch.cat(inputs), nodes)  # type: ignore[arg-type]
                assert not labels
            else:
                assert inputs == [None, None]
                assert torch.cat(labels).tolist() == images.labels[indices].tolist()


def test_the_checksum_sees_labels_and_pixels() -> None:
    images = small_images()
    chosen = np.array([3, 1, 4])
    before = content_checksum(images, chosen)
    assert content_checksum(images, chosen[::-1]) != before
    images.labels[1] += 1
    relabelled = content_checksum(images, chosen)
    images.parts[0][1, 0, 0, 0] ^= 255
    assert len({before, relabelled, content_checksum(images, chosen)}) == 3
