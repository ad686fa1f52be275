"""The sampler's draws in numpy and plain Python: the same numbers as `sample.cpp`, slowly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(key: int, counters: Words) -> Words:
    """Philox 4x32-10 (Salmon et al. 2011, section 3.3) of counters [n, 4] under a 64-bit key."""
    a, b, c, d = (counters[:, k].astype(np.uint64) for k in range(4))
    key0, key1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a = (second >> _HALF) ^ b ^ np.uint64(key0)
        c = (first >> _HALF) ^ d ^ np.uint64(key1)
        b, d = second & _LOW, first & _LOW
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack((a, b, c, d), 1)


def draws(seed: int, node: int, step: int, layer: int, block: int = 0) -> Iterator[int]:
    """The 32-bit numbers of one node in one layer of one step, in order; four a block."""
    while True:
        counter = np.array([[node, step, layer, block]], dtype=np.uint64)
        yield from philox(seed, counter)[0].tolist()
        block += 1


@dataclass(frozen=True)
class PlainDraw:
    """One layer of a sampled mini-batch, and by which numbers its neighbours are drawn.

    `number` is the layer's, counted from the mini-batch's own nodes outward.
    """

    fanout: int
    seed: int
    step: int
    number: int
    replace: bool = False

    def places(self, nodes: Sequence[int], degrees: Sequence[int]) -> list[list[int]]:
        """Of each of these nodes, which of its edges are drawn, counted from 0."""
        drawn = [n for n, degree in zip(nodes, degrees, strict=True) if self._draws(degree)]
        # Nearly always enough: more are worked out where a number is refused.
        blocks = self.fanout // 4 + 2
        counters = np.array(
            [[n, self.step, self.number, block] for n in drawn for block in range(blocks)],
            dtype=np.uint64,
        ).reshape(-1, 4)
        first = philox(self.seed, counters).reshape(len(drawn), 4 * blocks).tolist()
        ready = dict(zip(drawn, first, strict=True))
        found = []
        for node, degree in zip(nodes, degrees, strict=True):
            if not self._draws(degree):
                found.append(list(range(degree)))
                continue
            more = draws(self.seed, node, self.step, self.number, blocks)
            numbers = chain(ready[node], more)
            if self.replace:
                found.append([below(numbers, degree) for _ in range(self.fanout)])
            else:
                found.append(pick(numbers, degree, self.fanout))
        return found

    def _draws(self, degree: int) -> bool:
        return degree > 0 and (self.replace or degree > self.fanout)


def below(numbers: Iterator[int], count: int) -> int:
    """One of 0 to count - 1, all equally likely (Lemire 2019, algorithm 5)."""
    least = (1 << 32) % count
    product = next(numbers) * count
    while (product & 0xFFFFFFFF) < least:
        product = next(numbers) * count
    return product >> 32


def pick(numbers: Iterator[int], n: int, k: int) -> list[int]:
    """k of the numbers 0 to n - 1, ascending (R. W. Floyd, in Bentley 1987).

    Where that is most of them, those are drawn that stay out.
    """
    if 2 * k > n:
        out = set(pick(numbers, n, n - k))
        return [number for number in range(n) if number not in out]
    picked: set[int] = set()
    for last in range(n - k, n):
        drawn = below(numbers, last + 1)
        picked.add(last if drawn in picked else drawn)
    return sorted(picked)
