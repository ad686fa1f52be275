"""Which images a step trains on, and the thread that prepares them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.batches.image_loader import ImageLoader, content_checksum, epoch_indices
from gnnhpc.data.images import Images, load_images
from gnnhpc.data.settings import SyntheticCifar10

PLANS = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 40)).map(
    lambda plan: (plan[0], plan[1], plan[0] * plan[1] + plan[2])
)
SEEDS = st.integers(0, 2**32)


def small_images() -> Images:
    return load_images(SyntheticCifar10(train=23, image_size=5), None, "train")


@given(PLANS, SEEDS, st.integers(0, 3))
def test_an_epoch_shows_each_sample_at_most_once(
    plan: tuple[int, int, int], seed: int, epoch: int
) -> None:
    replicas, batch, samples = plan
    steps = samples // (replicas * batch)
    seen: list[int] = []
    for step in range(epoch * steps, (epoch + 1) * steps):
        for replica in range(replicas):
            found, indices = epoch_indices(samples, batch, replicas, replica, seed, step)
            assert found == epoch
            assert indices.shape == (batch,)
            seen += indices.tolist()
    assert len(seen) == steps * replicas * batch > samples - replicas * batch
    assert len(set(seen)) == len(seen)
    assert 0 <= min(seen) <= max(seen) < samples


@given(PLANS, SEEDS, st.integers(0, 100))
def test_replicas_share_what_one_process_would_see(
    plan: tuple[int, int, int], seed: int, step: int
) -> None:
    replicas, batch, samples = plan
    parts = [epoch_indices(samples, batch, replicas, r, seed, step)[1] for r in range(replicas)]
    alone = epoch_indices(samples, batch * replicas, 1, 0, seed, step)[1]
    assert np.array_equal(np.concatenate(parts), alone)


@given(PLANS, SEEDS, st.integers(0, 100))
def test_the_answer_depends_on_nothing_else(
    plan: tuple[int, int, int], seed: int, step: int
) -> None:
    replicas, batch, samples = plan
    _, first = epoch_indices(samples, batch, replicas, 0, seed, step)
    kept = first.copy()
    first[:] = -1
    epoch_indices(samples, batch, replicas, 0, seed + 1, step)
    assert np.array_equal(epoch_indices(samples, batch, replicas, 0, seed, step)[1], kept)


def test_epochs_and_seeds_differ() -> None:
    orders = {
        tuple(epoch_indices(100, 100, 1, 0, seed, step)[1]) for seed in (0, 1) for step in (0, 1)
    }
    assert len(orders) == 4


@pytest.mark.parametrize(
    "arguments",
    [(9, 5, 2, 0, 0, 0), (10, 0, 1, 0, 0, 0), (10, 5, 2, 2, 0, 0), (10, 5, 2, 0, 0, -1)],
)
def test_what_does_not_fit_is_refused(arguments: tuple[int, int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"does not fit|no replica"):
        epoch_indices(*arguments)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(0, 5), st.integers(0, 6), st.booleans(), st.integers(0, 3))
def test_the_loader_gives_what_the_indices_say(
    replicas: int, start: int, count: int, pixels: bool, seed: int
) -> None:
    images = small_images()
    with ImageLoader(
        images,
        batch_size=4,
        replicas=replicas,
        replica=replicas - 1,
        seed=seed,
        start=start,
        stop=start + count,
        pixels=pixels,
    ) as loader:
        steps = []
        for batch in loader:
            epoch, indices = epoch_indices(23, 4, replicas, replicas - 1, seed, batch.step)
            assert batch.epoch == epoch
            assert np.array_equal(batch.indices, indices)
            assert batch.labels.tolist() == images.labels[indices].tolist()
            assert batch.checksum == content_checksum(images, indices)
            if pixels:
                assert batch.pixels is not None
                assert torch.equal(batch.pixels, images.batch(indices))
            else:
                assert batch.pixels is None
            steps.append(batch.step)
    assert steps == list(range(start, start + count))


def test_a_batch_stands_until_the_next_is_asked_for() -> None:
    images = small_images()
    with ImageLoader(images, batch_size=5, stop=20) as loader:
        first = next(loader)
        second = next(loader)
        assert first.pixels is not None
        assert second.pixels is not None
        kept = second.pixels.clone()
        # The thread may by now have filled the first batch's buffers with the third.
        loader._free.put(None)
        loader._thread.join()
        assert torch.equal(second.pixels, kept)
        assert first.pixels.data_ptr() != second.pixels.data_ptr()


def test_an_error_in_the_thread_is_raised_where_the_batch_is_asked_for() -> None:
    with (
        ImageLoader(small_images(), batch_size=24, stop=3) as loader,
        pytest.raises(ValueError, match="24 does not fit into 23 samples"),
    ):
        next(loader)


def test_closing_early_ends_the_thread() -> None:
    loader = ImageLoader(small_images(), batch_size=2, stop=1000)
    next(loader)
    assert any(thread.name == "image-loader" for thread in threading.enumerate())
    loader.close()
    loader.close()
    assert not any(thread.name == "image-loader" for thread in threading.enumerate())
    with pytest.raises(StopIteration):
        next(loader)


def test_the_checksum_sees_labels_and_pixels() -> None:
    images = small_images()
    chosen = np.array([3, 1, 4])
    before = content_checksum(images, chosen)
    assert content_checksum(images, chosen[::-1]) != before
    images.labels[1] += 1
    relabelled = content_checksum(images, chosen)
    images.parts[0][1, 0, 0, 0] ^= 255
    assert len({before, relabelled, content_checksum(images, chosen)}) == 3
