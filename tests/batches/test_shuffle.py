"""Every node to train on comes once an epoch, whatever the number of replicas."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.batches.shuffle import Share, Shares

SAMPLES, SIZES, REPLICAS = st.integers(1, 60), st.integers(1, 9), st.integers(1, 5)


def parts(samples: int, batch_size: int, replicas: int, seed: int, step: int) -> list[Share]:
    """The share of each replica, in two micro-batches, of samples that are every third number."""
    train = torch.arange(samples) * 3
    of = [Shares(train, batch_size, 2, replicas, replica, seed) for replica in range(replicas)]
    return [shares.of_step(step) for shares in of]


@given(SAMPLES, SIZES, REPLICAS, st.integers(0, 3))
def test_an_epoch_is_all_samples_once(
    samples: int, batch_size: int, replicas: int, seed: int
) -> None:
    steps = -(-samples // (batch_size * replicas))
    for epoch in range(2):
        seen: list[int] = []
        for step in range(epoch * steps, (epoch + 1) * steps):
            found = parts(samples, batch_size, replicas, seed, step)
            assert {share.epoch for share in found} == {epoch}
            sizes = [len(share.places) for share in found]
            together = np.concatenate([share.places for share in found]).tolist()
            assert all(share.whole.tolist() == together for share in found)
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= batch_size
            if step < (epoch + 1) * steps - 1:
                assert set(sizes) == {batch_size}
            for share in found:
                assert torch.cat(share.seeds).sort().values.tolist() == sorted(share.places * 3)
            seen += together
        assert sorted(seen) == list(range(samples))


@given(SAMPLES, SIZES, REPLICAS, st.integers(0, 40))
def test_replicas_together_have_the_batch_of_one(
    samples: int, batch_size: int, replicas: int, step: int
) -> None:
    found = parts(samples, batch_size, replicas, 1, step)
    (alone,) = parts(samples, batch_size * replicas, 1, 1, step)
    assert np.concatenate([share.places for share in found]).tolist() == alone.places.tolist()
