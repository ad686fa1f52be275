"""Every node to train on comes once an epoch, whatever the number of replicas."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.batches.shuffle import share, steps_per_epoch


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    replicas=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_an_epoch_is_all_samples_once(
    samples: int, batch_size: int, replicas: int, seed: int
) -> None:
    steps = steps_per_epoch(samples, batch_size * replicas)
    for epoch in range(2):
        seen = []
        for step in range(epoch * steps, (epoch + 1) * steps):
            parts = [share(samples, batch_size, replicas, r, seed, step) for r in range(replicas)]
            assert {found_epoch for found_epoch, _, _ in parts} == {epoch}
            sizes = [len(places) for _, _, places in parts]
            together = np.concatenate([places for _, _, places in parts]).tolist()
            assert all(whole.tolist() == together for _, whole, _ in parts)
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= batch_size
            if step < (epoch + 1) * steps - 1:
                assert set(sizes) == {batch_size}
            seen += [places for _, _, places in parts]
        assert sorted(np.concatenate(seen)) == list(range(samples))


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    replicas=st.integers(1, 5),
    step=st.integers(0, 40),
)
def test_replicas_together_have_the_batch_of_one(
    samples: int, batch_size: int, replicas: int, step: int
) -> None:
    parts = [share(samples, batch_size, replicas, r, 1, step)[2] for r in range(replicas)]
    _, _, alone = share(samples, batch_size * replicas, 1, 0, 1, step)
    assert np.concatenate(parts).tolist() == alone.tolist()
