"""Links to train on, to validate and to test, and their negatives, worked out again.

Links are the unordered pairs of nodes with an edge, by their smaller and then their larger node. A
permutation of them is drawn by numpy's default generator from (seed, 101): the first share
validates, the next tests, the others train, in order. Coins drawn from (seed, 102), one a link,
turn their two ends round. The message graph has the links to train on, in both directions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnnhpc.check.plain.draws import below, draws, philox
from gnnhpc.check.plain.order import Ids
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.links import Links

FIRST_NEGATIVE = 1 << 31
"""In place of a layer's number, that of a link's first negative."""
_POOLS = {"val": 201, "test": 202}


@dataclass(frozen=True)
class PlainLinks:
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
    def of(cls, experiment: Experiment, source: Ids, target: Ids, nodes: int) -> PlainLinks:
        task, seed = experiment.task, experiment.seed
        assert task is not None
        codes = np.sort(np.where(source < target, source * nodes + target, target * nodes + source))
        codes = codes[np.append(True, codes[1:] != codes[:-1])]
        order = np.random.default_rng([seed, 101]).permutation(len(codes))
        turned = np.random.default_rng([seed, 102]).integers(0, 2, len(codes)) == 1
        first = np.where(turned, codes % nodes, codes // nodes)
        last = np.where(turned, codes // nodes, codes % nodes)
        val = int(len(codes) * task.val_share)
        test = val + int(len(codes) * task.test_share)
        chosen = {"val": order[:val], "test": order[val:test], "train": np.sort(order[test:])}
        by_split = {s: np.column_stack((first[c], last[c])) for s, c in chosen.items()}
        train = by_split["train"]
        both = np.concatenate((train, train[:, ::-1]))
        both = both[np.lexsort((both[:, 0], both[:, 1]))]
        return cls(nodes, seed, task, by_split, both[:, 0].copy(), both[:, 1].copy(), codes)

    def edges_of(self, numbers: Ids) -> Ids:
        """Numbers in the message graph of the edges of some links to train on, ascending."""
        links = self.by_split["train"][numbers]
        both = np.concatenate((links, links[:, ::-1]))
        return np.sort(np.searchsorted(self._codes, both[:, 1] * self.nodes + both[:, 0]))

    def pairs(self, numbers: Ids, step: int) -> Ids:
        """The links of a micro-batch, [n, 2], and after them the negatives of each."""
        links, count = self.by_split["train"][numbers], self.task.negatives
        kept, number = np.repeat(links[:, 0], count), np.repeat(numbers, count)
        draw = np.tile(np.arange(count), len(links))
        return np.concatenate(
            (links, np.column_stack((kept, self._others(kept, number, step, draw))))
        )

    def _others(self, kept: Ids, number: Ids, step: int, draw: Ids) -> Ids:
        """For each a node that is neither `kept` nor joined to it, each as likely as any.

        Of those nodes the one that has as many before it as the bounded number drawn. It lies
        behind all joined nodes, `kept` itself among them, that have no more unjoined ones before.
        """
        first, before = self._unjoined_before
        free = self.nodes - np.diff(first)[kept]
        layer = FIRST_NEGATIVE + draw
        drawn = _bounded(self.seed, number, step, layer, free)
        place = np.searchsorted(before, kept * (self.nodes + 1) + drawn, side="right")
        return np.asarray(drawn + place - first[kept], dtype=np.int64)

    @cached_property
    def _unjoined_before(self) -> tuple[Ids, Ids]:
        """Where each node's joined nodes begin, itself among them; and of each of these how many
        nodes before it are not joined, plus node * (nodes + 1)."""
        own = np.arange(self.nodes)
        node = np.concatenate((self.target, own))
        joined = np.concatenate((self.source, own))
        order = np.lexsort((joined, node))
        node, joined = node[order], joined[order]
        first = np.searchsorted(node, np.arange(self.nodes + 1))
        place = np.arange(len(node)) - first[node]
        return first, node * (self.nodes + 1) + joined - place

    @cached_property
    def _codes(self) -> Ids:
        return self.target * self.nodes + self.source

    def are_known(self, pairs: Ids) -> NDArray[np.bool_]:
        """[n]: whether the message graph has an edge between the two nodes of each."""
        return np.isin(pairs[:, 0] * self.nodes + pairs[:, 1], self._codes)

    def pool(self, split: str) -> Ids:
        """[n, 2]: the negatives that a split's links are judged against.

        Pairs of nodes come from (seed, 201) to validate, 202 to test, 2 n at a time; those of one
        node, of an edge of the whole graph, and those that came before are left out.
        """
        count = min(len(self.by_split[split]), self.task.pool)
        kept: dict[int, None] = {}
        for codes in self._drawn_codes(split, 2 * count):
            known = np.isin(codes, self.joined)
            kept |= dict.fromkeys(codes[~known].tolist())
            if len(kept) >= count:
                break
        found = np.array(list(itertools.islice(kept, count)), dtype=np.int64)
        return np.column_stack((found // self.nodes, found % self.nodes))

    def _drawn_codes(self, split: str, count: int) -> Iterator[Ids]:
        rng = np.random.default_rng([self.seed, _POOLS[split]])
        while True:
            ends = rng.integers(0, self.nodes, (2, count))
            ends = np.sort(ends[:, ends[0] != ends[1]], axis=0)
            yield ends[0] * self.nodes + ends[1]

    def judged(self, split: str, place: int, parts: int) -> Ids:
        """One micro-batch's links of `parts` over all replicas, [n, 2], and after them the pool."""
        return np.concatenate((self.share(split, place, parts), self.pool(split)))

    def share(self, split: str, place: int, parts: int) -> Ids:
        """Consecutive links, of which earlier parts have one more where they are not as many."""
        first, end = self._bounds(split, place, parts)
        return self.by_split[split][first:end]

    def judged_numbers(self, place: int, parts: int) -> Ids:
        """Of one micro-batch's links, their places among those to validate and then to test."""
        before = {"val": 0, "test": len(self.by_split["val"])}
        return np.concatenate(
            [n + np.arange(*self._bounds(split, place, parts)) for split, n in before.items()]
        )

    def _bounds(self, split: str, place: int, parts: int) -> tuple[int, int]:
        size, more = divmod(len(self.by_split[split]), parts)
        first = place * size + min(place, more)
        return first, first + size + (place < more)


def _bounded(seed: int, number: Ids, step: int, layer: Ids, count: Ids) -> Ids:
    """One of 0 to count - 1 each (Lemire 2019, algorithm 5), the first of its own counter's."""
    counters = np.zeros((len(number), 4), dtype=np.uint64)
    counters[:, 0], counters[:, 1], counters[:, 2] = number, step, layer
    product = philox(seed, counters)[:, 0] * count.astype(np.uint64)
    found = (product >> np.uint64(32)).astype(np.int64)
    refused = (product & np.uint64(0xFFFFFFFF)) < (1 << 32) % count.astype(np.uint64)
    for place in np.flatnonzero(refused):
        own = draws(seed, int(number[place]), step, int(layer[place]))
        found[place] = below(own, int(count[place]))
    return found
