"""Links to train on, to validate and to test, and their negatives, from the documented rules.

Links are the unordered pairs of nodes with an edge, ordered by their smaller and then their larger
node. Numpy's default generator gives a permutation of them from (seed, 101): the first share
validates, the next tests, the others train, in order. Coins from (seed, 102), one a link, swap
their two ends. The message graph has the links to train on, in both directions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.link_prediction import Links
from gnnhpc.validation.reference.random_numbers import below, node_numbers, philox
from gnnhpc.validation.reference.sample_schedule import Ids

FIRST_NEGATIVE = 1 << 31
"""Stands in the place of a layer's number for a link's first negative."""
_POOLS = {"val": 201, "test": 202}


@dataclass(frozen=True)
class LinkSplit:
    """Links are [n, 2]; `source` and `target` [edges] are the message graph's, by target."""

    nodes: int
    seed: int
    task: Links
    by_split: dict[str, Ids]
    source: Ids
    target: Ids
    joined: Ids
    """smaller node * nodes + larger node of every link, ascending."""

    @classmethod
    def of(cls, experiment: Experiment, source: Ids, target: Ids, nodes: int) -> LinkSplit:
        """The split of a graph with these edges [E]."""
        task, seed = experiment.task, experiment.seed
        assert task is not None
        codes = np.unique(np.minimum(source, target) * nodes + np.maximum(source, target))
        order = np.random.default_rng([seed, 101]).permutation(len(codes))
        swapped = np.random.default_rng([seed, 102]).integers(0, 2, len(codes)) == 1
        first = np.where(swapped, codes % nodes, codes // nodes)
        last = np.where(swapped, codes // nodes, codes % nodes)
        val = int(len(codes) * task.val_share)
        test = val + int(len(codes) * task.test_share)
        chosen = {"val": order[:val], "test": order[val:test], "train": np.sort(order[test:])}
        by_split = {s: np.column_stack((first[c], last[c])) for s, c in chosen.items()}
        train = by_split["train"]
        both = np.concatenate((train, train[:, ::-1]))
        both = both[np.lexsort((both[:, 0], both[:, 1]))]
        return cls(nodes, seed, task, by_split, both[:, 0].copy(), both[:, 1].copy(), codes)

    def edges_of(self, numbers: Ids) -> Ids:
        """The numbers in the message graph of the edges of some links to train on, ascending."""
        links = self.by_split["train"][numbers]
        both = np.concatenate((links, links[:, ::-1]))
        codes = self.target * self.nodes + self.source
        return np.sort(np.searchsorted(codes, both[:, 1] * self.nodes + both[:, 0]))

    def pairs(self, numbers: Ids, step: int) -> Ids:
        """The links of a micro-batch, [n, 2], and after them the negatives of each."""
        links, count = self.by_split["train"][numbers], self.task.negatives
        kept, number = np.repeat(links[:, 0], count), np.repeat(numbers, count)
        place = np.tile(np.arange(count), len(links))
        others = self._unjoined(kept, number, step, place)
        return np.concatenate((links, np.column_stack((kept, others))))

    def evaluated(self, split: str, place: int, parts: int) -> tuple[Ids, int]:
        """The pairs of one of `parts` micro-batches in an evaluation, [n, 2], and how many of them
        are links: those come first, and after them the split's pool of negatives."""
        links = np.array_split(self.by_split[split], parts)[place]
        return np.concatenate((links, self._pool(split))), len(links)

    def _unjoined(self, kept: Ids, number: Ids, step: int, place: Ids) -> Ids:
        """For each entry a node that is neither `kept` nor joined to it, all equally likely.

        The node with as many unjoined nodes before it as the bounded number says. It lies behind
        all joined nodes, `kept` itself among them, that have no more unjoined ones before them.
        """
        first, before = self._unjoined_before
        free = self.nodes - np.diff(first)[kept]
        bounded = _bounded(self.seed, number, step, FIRST_NEGATIVE + place, free)
        found = np.searchsorted(before, kept * (self.nodes + 1) + bounded, side="right")
        return np.asarray(bounded + found - first[kept], dtype=np.int64)

    @cached_property
    def _unjoined_before(self) -> tuple[Ids, Ids]:
        """Where the joined nodes of each node begin, itself among them; and for each of these the
        number of unjoined nodes before it, plus node * (nodes + 1)."""
        own = np.arange(self.nodes)
        node = np.concatenate((self.target, own))
        joined = np.concatenate((self.source, own))
        order = np.lexsort((joined, node))
        node, joined = node[order], joined[order]
        first = np.searchsorted(node, np.arange(self.nodes + 1))
        place = np.arange(len(node)) - first[node]
        return first, node * (self.nodes + 1) + joined - place

    def _pool(self, split: str) -> Ids:
        """[n, 2]: the negatives that the links of a split are ranked among.

        Pairs of nodes come from (seed, 201) to validate, 202 to test, 2 n at a time; those of one
        node, those with an edge in the whole graph, and repeated ones are left out.
        """
        count = min(len(self.by_split[split]), self.task.pool)
        kept: dict[int, None] = {}
        for codes in self._pair_codes(split, 2 * count):
            kept |= dict.fromkeys(codes[~np.isin(codes, self.joined)].tolist())
            if len(kept) >= count:
                break
        found = np.array(list(itertools.islice(kept, count)), dtype=np.int64)
        return np.column_stack((found // self.nodes, found % self.nodes))

    def _pair_codes(self, split: str, count: int) -> Iterator[Ids]:
        rng = np.random.default_rng([self.seed, _POOLS[split]])
        while True:
            ends = rng.integers(0, self.nodes, (2, count))
            ends = np.sort(ends[:, ends[0] != ends[1]], axis=0)
            yield ends[0] * self.nodes + ends[1]


def _bounded(seed: int, number: Ids, step: int, layer: Ids, count: Ids) -> NDArray[np.int64]:
    """One of 0 to count - 1 for each entry (Lemire 2019, algorithm 5), from its own counter."""
    counters = np.zeros((len(number), 4), dtype=np.uint64)
    counters[:, 0], counters[:, 1], counters[:, 2] = number, step, layer
    product = philox(seed, counters)[:, 0] * count.astype(np.uint64)
    found = (product >> np.uint64(32)).astype(np.int64)
    refused = (product & np.uint64(0xFFFFFFFF)) < (1 << 32) % count.astype(np.uint64)
    for place in np.flatnonzero(refused):
        numbers = node_numbers(seed, int(number[place]), step, int(layer[place]))
        found[place] = below(numbers, int(count[place]))
    return found
