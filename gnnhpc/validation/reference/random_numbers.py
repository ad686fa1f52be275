"""The random numbers of samples and negatives, from their documented rules.

The kernels compute the same numbers; this is slow and meant to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Ids = NDArray[np.int64]
FIRST_NEGATIVE = 1 << 31
"""Stands in the place of a layer's number for a link's first negative."""
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


def node_numbers(seed: int, node: int, step: int, layer: int, block: int = 0) -> Iterator[int]:
    """The 32-bit numbers of one node in one layer of one step, in order; four a block."""
    while True:
        counter = np.array([[node, step, layer, block]], dtype=np.uint64)
        yield from philox(seed, counter)[0].tolist()
        block += 1


@dataclass(frozen=True)
class NeighborSampling:
    """How one layer of a sampled mini-batch samples the edges into each node."""

    fanout: int
    seed: int
    step: int
    layer: int
    """Counts from 0, from the mini-batch's own nodes outward."""

    def places(self, nodes: Sequence[int], degrees: Sequence[int]) -> list[list[int]]:
        """For each node, which of its edges are sampled, counted from 0."""
        several = [n for n, degree in zip(nodes, degrees, strict=True) if degree > self.fanout]
        # Nearly always enough blocks; a number that is refused takes one from the next.
        blocks = self.fanout // 4 + 2
        counters = np.array(
            [[n, self.step, self.layer, block] for n in several for block in range(blocks)],
            dtype=np.uint64,
        ).reshape(-1, 4)
        first = philox(self.seed, counters).reshape(len(several), 4 * blocks).tolist()
        ready = dict(zip(several, first, strict=True))
        found = []
        for node, degree in zip(nodes, degrees, strict=True):
            if degree <= self.fanout:
                found.append(list(range(degree)))
                continue
            numbers = chain(
                ready[node], node_numbers(self.seed, node, self.step, self.layer, blocks)
            )
            found.append(pick(numbers, degree, self.fanout))
        return found


def below(numbers: Iterator[int], count: int) -> int:
    """One of 0 to count - 1, all equally likely (Lemire 2019, algorithm 5)."""
    least = (1 << 32) % count
    product = next(numbers) * count
    while (product & 0xFFFFFFFF) < least:
        product = next(numbers) * count
    return product >> 32


def pick(numbers: Iterator[int], n: int, k: int) -> list[int]:
    """k of the numbers 0 to n - 1, ascending (R. W. Floyd, in Bentley 1987).

    Where k is more than half of n, the numbers that are left out are picked.
    """
    if 2 * k > n:
        out = set(pick(numbers, n, n - k))
        return [number for number in range(n) if number not in out]
    picked: set[int] = set()
    for last in range(n - k, n):
        number = below(numbers, last + 1)
        picked.add(last if number in picked else number)
    return sorted(picked)


@dataclass(frozen=True)
class NegativeSampling:
    """How negatives of links are sampled: nodes that no edge of the message graph joins."""

    seed: int
    nodes: int
    source: Ids
    target: Ids
    """int64 [E] each: the edges of the message graph, in both directions."""

    def others(self, kept: Ids, numbers: Ids, step: int, count: int) -> Ids:
        """`count` nodes for each link, all equally likely; int64 [links * count].

        `kept` are the links' first ends, `numbers` the links. A bounded random number counts the
        nodes that are not joined to the first end.
        """
        found = []
        for node, link in zip(kept.tolist(), numbers.tolist(), strict=True):
            joined = np.append(self.source[self.target == node], node)
            free = np.setdiff1d(np.arange(self.nodes), joined)
            for negative in range(count):
                random = node_numbers(self.seed, link, step, FIRST_NEGATIVE + negative)
                found.append(free[below(random, len(free))])
        return np.array(found, dtype=np.int64)
