"""The independent order of samples is the loaders'."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnhpc.batches.image_batches import epoch_indices
from gnnhpc.batches.shuffle import Shares
from gnnhpc.validation.reference.sample_schedule import SampleSchedule, split_nodes


@pytest.mark.parametrize("replica", range(3))
def test_images_come_in_the_loaders_order(replica: int) -> None:
    schedule = SampleSchedule(50, 4, 3, seed=5, drop_last=True)
    for step in range(3 * schedule.steps_per_epoch):
        epoch, expected = epoch_indices(50, 4, 3, replica, 5, step)
        assert schedule.epoch(step) == epoch
        assert np.array_equal(schedule.share(step, replica), expected)


@pytest.mark.parametrize("replica", range(3))
def test_nodes_come_in_the_loaders_shares(replica: int) -> None:
    train = torch.arange(100, 150)
    shares = Shares(train, 4, 3, 3, replica, seed=5)
    schedule = SampleSchedule(50, 4, 3, seed=5, drop_last=False)
    assert schedule.steps_per_epoch == shares.steps_per_epoch
    for step in range(2 * schedule.steps_per_epoch):
        share = shares.of_step(step)
        assert np.array_equal(schedule.global_batch(step), share.whole)
        assert np.array_equal(schedule.share(step, replica), share.places)
        nodes = split_nodes(train.numpy()[share.places], 3)
        for actual, expected in zip(nodes, share.seeds, strict=True):
            assert np.array_equal(actual, expected.numpy())
