"""The order of samples and the random numbers of a run, from their documented rules.

The loaders and the kernels compute the same; this is slow and meant to be read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gnnhpc.experiment.experiment import Experiment

Ids = NDArray[np.int64]


class SampleSchedule:
    """Which of an experiment's `samples` samples each replica trains on in each step.

    An epoch of images leaves out the samples after the last whole global mini-batch. Of other data
    the last global mini-batch of an epoch has what is left.
    """

    def __init__(self, experiment: Experiment, samples: int) -> None:
        assert experiment.batch_size is not None
        self._samples, self._seed = samples, experiment.seed
        self._replicas = experiment.layout.replicas
        self._together = experiment.batch_size * self._replicas
        is_images = experiment.data.facts().kind == "images"
        left_out = samples % self._together if is_images else 0
        self.steps_per_epoch = -(-(samples - left_out) // self._together)

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def global_batch(self, step: int) -> Ids:
        """The samples of all replicas in a step, int64 [n], in the order of the permutation."""
        start = step % self.steps_per_epoch * self._together
        order = permutation(self._samples, self._seed, self.epoch(step))
        return order[start : start + self._together]

    def share(self, step: int, replica: int) -> Ids:
        """The samples of one replica in a step, int64 [n]; shares differ by one sample at most."""
        return part_of(self.global_batch(step), replica, self._replicas)


@functools.lru_cache(maxsize=4)
def permutation(samples: int, seed: int, epoch: int) -> Ids:
    """The samples 0 to samples - 1 in the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def split_nodes(nodes: Ids, microbatches: int) -> list[Ids]:
    """Nodes of a replica's share as its micro-batches, each ascending.

    Where the micro-batches cannot be equally large, the first ones have one node more.
    """
    return [np.sort(part) for part in np.array_split(nodes, microbatches)]


def part_of(items: Ids, place: int, parts: int) -> Ids:
    """One of `parts` consecutive parts, cut at len * place // parts."""
    first, stop = (len(items) * each // parts for each in (place, place + 1))
    return items[first:stop]


FIRST_NEGATIVE = 1 << 31
"""Stands in the place of a layer's number for a link's first negative."""
_LOW = (1 << 32) - 1


def philox(key: int, counter: Sequence[int]) -> list[int]:
    """Philox 4x32-10 (Salmon et al. 2011, section 3.3) of one counter under a 64-bit key."""
    a, b, c, d = counter
    key0, key1 = key & _LOW, key >> 32
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (second >> 32) ^ b ^ key0, second & _LOW
        c, d = (first >> 32) ^ d ^ key1, first & _LOW
        key0, key1 = (key0 + 0x9E3779B9) & _LOW, (key1 + 0xBB67AE85) & _LOW
    return [a, b, c, d]


def node_numbers(seed: int, node: int, step: int, layer: int) -> Iterator[int]:
    """The 32-bit numbers of one node in one layer of one step, in order; four a block."""
    for block in itertools.count():
        yield from philox(seed, (node, step, layer, block))


def below(numbers: Iterator[int], count: int) -> int:
    """One of 0 to count - 1, all equally likely (Lemire 2019, algorithm 5)."""
    least = (1 << 32) % count
    product = next(numbers) * count
    while (product & _LOW) < least:
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


def negatives_of(
    kept: Ids, numbers: Ids, edges: Ids, nodes: int, seed: int, step: int, count: int
) -> Ids:
    """`count` nodes for each link, all equally likely, that no edge joins to the link's first end.

    `kept` are the first ends, `numbers` the links; `edges`, int64 [2, E], are those of the message
    graph, in both directions. A bounded random number counts the nodes that are not joined. Returns
    int64 [links * count].
    """
    found = []
    for node, link in zip(kept.tolist(), numbers.tolist(), strict=True):
        joined = np.append(edges[0][edges[1] == node], node)
        free = np.setdiff1d(np.arange(nodes), joined)
        for negative in range(count):
            random = node_numbers(seed, link, step, FIRST_NEGATIVE + negative)
            found.append(free[below(random, len(free))])
    return np.array(found, dtype=np.int64)
