"""Whether a rank's generators are where the seed puts them, before anything has drawn from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch


def other_generators(seed: int, rank: int, devices: Sequence[torch.device]) -> str | None:
    """Which are elsewhere, in words; none where all are there.

    A rank's seed is the first 63 bits that Python's generator gives from "gnnhpc/<seed>/<rank>".
    """
    own = random.Random(f"gnnhpc/{seed}/{rank}").getrandbits(63)
    wrong = [*_elsewhere(own, devices)]
    return (
        f"{', '.join(wrong)} did not begin where the seed says for rank {rank}" if wrong else None
    )


def _elsewhere(seed: int, devices: Sequence[torch.device]) -> Iterator[str]:
    if not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(seed).get_state()):
        yield "torch's"
    if random.getstate() != random.Random(seed).getstate():
        yield "Python's"
    if _numpys(np.random.get_state()) != _numpys(np.random.RandomState(seed % 2**32).get_state()):
        yield "numpy's"
    for device in devices:
        if device.type == "cuda":
            generator = torch.cuda.default_generators[device.index or 0]
            if generator.initial_seed() != seed:
                yield f"that of {device}"


def _numpys(state: Any) -> tuple[Any, ...]:
    kind, keys, *rest = state
    return kind, keys.tobytes(), *rest
