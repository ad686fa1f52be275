"""Order of the data."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gnnhpc.batches import image_loader
from gnnhpc.batches.image_loader import ImageLoader
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, replace

KIND = "order of data"
defect = functools.partial(planted, kind=KIND)


@defect("never reshuffled: each epoch in the order of the first", setting=settings.VIG)
def never_reshuffled() -> None:
    around(image_loader, "permutation", lambda true, samples, seed, epoch: true(samples, seed, 0))


@defect("not shuffled at all", setting=settings.VIG)
def unshuffled() -> None:
    replace(image_loader, "permutation", lambda samples, seed, epoch: np.arange(samples))


@defect("an order that does not depend on the seed", setting=settings.VIG)
def no_seed() -> None:
    around(image_loader, "permutation", lambda true, samples, seed, epoch: true(samples, 17, epoch))


@defect("samples drawn with replacement", setting=settings.VIG)
def with_replacement() -> None:
    def drawn(samples: int, seed: int, epoch: int) -> Any:
        return np.random.default_rng([seed, epoch]).integers(0, samples, samples)

    replace(image_loader, "permutation", drawn)


@defect("every replica trains on all of the data", setting=settings.VIG_REPLICAS)
def unsharded() -> None:
    """Boca."""

    def whole(true: Any, loader: ImageLoader, *args: Any, **kwargs: Any) -> None:
        true(loader, *args, **kwargs | {"replicas": 1, "replica": 0})

    around(ImageLoader, "__init__", whole)


@defect("one mini-batch for the whole epoch", setting=settings.VIG)
def one_batch() -> None:
    """Sample numbers are reported as if they were each other's."""

    def fill(true: Any, loader: ImageLoader, step: int, buffers: Any) -> Any:
        loaded = true(loader, step, buffers)
        first = step - step % 4
        if buffers.pixels is not None:
            loader._images.batch_into(loader._part(first)[1], buffers.pixels.numpy())
        buffers.labels.numpy()[:] = loader._images.labels[loader._part(first)[1]]
        return loaded

    around(ImageLoader, "_fill", fill)
