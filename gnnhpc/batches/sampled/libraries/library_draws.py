"""Mini-batches drawn by a library's own loader, which begins anew in each epoch, as in its users'
programs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from gnnhpc.batches.sampled.draws import Drawn, edges_of
from gnnhpc.batches.sampled.libraries.library_loader import deaths_named
from gnnhpc.batches.shuffle import Shares
from gnnhpc.distributed.watchdog import hang_seconds
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.graph import Graph

if TYPE_CHECKING:
    from gnnhpc.batches.sampled.libraries.dgl_sampler import DglSampler
    from gnnhpc.batches.sampled.libraries.pyg_sampler import PygSampler

_PATIENCE = 10
"""Workers may take this many times as long for a mini-batch as ranks that do nothing may."""


class LibraryDraws:
    """Raises InputError where the library is missing."""

    def __init__(self, graph: Graph, sampling: Sampling, seed: int, steps_per_epoch: int) -> None:
        self._workers, self._steps_per_epoch = sampling.workers, steps_per_epoch
        self._semantics = sampling.semantics
        self._sampler: PygSampler | DglSampler
        self._library = "PyG" if sampling.sampler == "pyg" else "DGL"
        options: dict[str, Any] = {"workers": sampling.workers, "replace": sampling.replace}
        # Of several ranks the watchdog speaks first; it does not watch a rank alone.
        options["timeout_s"] = _PATIENCE * hang_seconds()
        if sampling.sampler == "pyg":
            from gnnhpc.batches.sampled.libraries.pyg_sampler import PygSampler

            self._sampler = PygSampler(graph, sampling.fanouts, seed, trim=sampling.trim, **options)
        else:
            from gnnhpc.batches.sampled.libraries.dgl_sampler import DglSampler

            options["fused"] = sampling.fused
            self._sampler = DglSampler(graph, sampling.fanouts, seed, **options)

    @contextlib.contextmanager
    def open(self, shares: Shares, steps: range) -> Iterator[Iterator[Drawn]]:
        drawn = self._epochs(shares, steps)
        # Between mini-batches the loader does not run, and a step may hear of a worker's death.
        with contextlib.closing(drawn), deaths_named(self._library):
            yield drawn

    def _epochs(self, shares: Shares, steps: range) -> Generator[Drawn]:
        start = steps.start
        while start < steps.stop:
            end = (start // self._steps_per_epoch + 1) * self._steps_per_epoch
            yield from self._epoch(shares, range(start, min(end, steps.stop)))
            start = end

    def _epoch(self, shares: Shares, steps: range) -> Iterator[Drawn]:
        all_shares = [shares.of_step(step) for step in steps]
        seeds = [part for share in all_shares for part in share.seeds]
        first = steps.start * shares.microbatches
        began_s = time.perf_counter()
        with self._sampler.open(seeds, first) as chunks:
            for share in all_shares:
                parts = tuple(next(chunks) for _ in share.seeds)
                sample_s = None if self._workers else time.perf_counter() - began_s
                yield Drawn(share, parts, edges_of(parts, self._semantics), sample_s)
                began_s = time.perf_counter()
