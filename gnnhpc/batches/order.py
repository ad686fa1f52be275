"""Which samples a step trains on: the same on every rank, without any communication.

An epoch is one permutation of all samples, drawn from the seed and the epoch's number.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


@functools.lru_cache(maxsize=4)
def permutation(samples: int, seed: int, epoch: int) -> Places:
    return np.random.default_rng([seed, epoch]).permutation(samples)


def steps_per_epoch(samples: int, together: int) -> int:
    """Of mini-batches of `together` samples over all replicas, the last of which may have fewer."""
    return -(-samples // together)


def share(
    samples: int, batch_size: int, replicas: int, replica: int, seed: int, step: int
) -> tuple[int, Places, Places]:
    """The epoch of a step, and the places of its samples: over all replicas, and of one replica.

    Every sample comes once an epoch: the last mini-batch has what is left, cut into parts that
    differ by one sample at most. A part may be empty.
    """
    together = batch_size * replicas
    epoch, number = divmod(step, steps_per_epoch(samples, together))
    order = permutation(samples, seed, epoch)[number * together :][:together]
    first, stop = (len(order) * part // replicas for part in (replica, replica + 1))
    return epoch, order, order[first:stop]
