"""Seeds and states of torch's, Python's and numpy's generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed torch's, Python's and numpy's generators of this process.

    It avoids `torch.manual_seed`, which takes a millisecond to keep the call's stack for devices
    that are not initialized yet: a small step is as short.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextlib.contextmanager
def fork_generators() -> Iterator[None]:
    """Restore torch's, Python's and numpy's generators after the block."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def seed_generators(seed: int, rank: int) -> None:
    """Seed the generators of a rank by what follows from the experiment's seed and the rank.

    Layers of a custom model may use them. Ours need none, since their random numbers follow from
    seed, step and place.
    """
    seed_all(random.Random(f"gnnhpc/{seed}/{rank}").getrandbits(63))
