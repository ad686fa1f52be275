"""PyG's and DGL's own data loaders as sources of mini-batches: workers, random numbers, blocks.

A loader begins anew in each epoch, as in its users' programs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gnnhpc.batches.batch import SPLITS, Loading
from gnnhpc.batches.graph_batch import crc32
from gnnhpc.batches.sampled.neighbor_sampler import SampledBlock
from gnnhpc.batches.sampled.training_samples import SampledChunks, edges_of
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph import Graph, block_weights

TIMEOUT_S = 300.0
"""The seconds that workers may take for a mini-batch."""
_WORKER_ERRORS = ("DataLoader worker", "DataLoader timed out")
"""How torch's messages about workers begin."""


class LibraryLoader(ABC):
    """Mini-batches by a library's sampler of one graph."""

    library: ClassVar[str]
    """The library's name, for messages."""

    def __init__(self, graph: Graph, sampling: Sampling, seed: int) -> None:
        self.graph, self.sampling, self.seed = graph, sampling, seed
        self.indptr = graph.in_edges.indptr
        self._degree = graph.in_edges.degrees

    @abstractmethod
    def loader(self, seeds: Sequence[Tensor], first_step: int) -> DataLoader[Any]:
        """The library's loader of the mini-batches of these nodes."""

    @abstractmethod
    def chunk_of(self, sampled: Any) -> GraphChunk:
        """The chunk of what the loader gives for one mini-batch."""

    @contextlib.contextmanager
    def open(self, shares: Shares, steps: range) -> Iterator[Iterator[SampledChunks]]:
        """Raises what a worker raised, and GnnhpcError where a worker died or timed out."""
        sampled = self._sampled(shares, steps)
        # torch raises the death of a worker in whatever the process computes.
        with contextlib.closing(sampled), worker_errors(self.library):
            yield sampled

    def metadata(self) -> dict[str, str]:
        return {"sampled_on": "host"}

    def _sampled(self, shares: Shares, steps: range) -> Generator[SampledChunks]:
        for _, epoch in itertools.groupby(steps, lambda step: step // shares.steps_per_epoch):
            all_shares = [shares.of_step(step) for step in epoch]
            seeds = [part for share in all_shares for part in share.seeds]
            began_s = time.perf_counter()
            with self.chunks(seeds, all_shares[0].step * shares.microbatches) as chunks:
                for share in all_shares:
                    parts = tuple(next(chunks) for _ in share.seeds)
                    sampled_s = time.perf_counter() - began_s
                    sample_s = None if self.sampling.workers else sampled_s
                    edges = edges_of(parts, self.sampling.semantics)
                    checksum = crc32(
                        x for c in parts for x in (c.nodes[: c.own], *c.targets.values())
                    )
                    yield SampledChunks(share, parts, checksum, Loading(sample_s, None, edges))
                    began_s = time.perf_counter()

    @contextlib.contextmanager
    def chunks(self, seeds: Sequence[Tensor], first_step: int) -> Iterator[Iterator[GraphChunk]]:
        """The chunks of these nodes, int64 [batch] each, none twice in one, in this order.

        Workers start at once, prefetch, and have ended when the context ends.
        """
        loader = self.loader(seeds, first_step)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Dataloader CPU affinity opt is not enabled")
            batches = iter(loader)
        try:
            yield map(self.chunk_of, _fetched(batches))
        finally:
            # torch ends workers when the iterator is dropped, which a traceback may still hold.
            inner: Any = getattr(batches, "dataloader_it", batches)
            if hasattr(inner, "_shutdown_workers"):
                with contextlib.suppress(RuntimeError):
                    inner._shutdown_workers()

    def chunk(self, nodes: Tensor, seeds: int, blocks: Sequence[Block]) -> GraphChunk:
        """The chunk of global ids int64 [rows], of which the first `seeds` have targets."""
        rows = (*(block.rows_in for block in blocks), blocks[-1].rows_out)
        weighted = self.graph.weighted_degrees
        return GraphChunk(
            nodes=nodes,
            rows=rows,
            blocks=tuple(blocks),
            degree=self._degree[nodes] + 1,
            targets=self.graph.targets(nodes[:seeds], rows[-1], SPLITS["train"]),
            own=seeds,
            sampled=True,
            weighted_degree=None if weighted is None else weighted[nodes],
        )


def random_seed(seed: int, step: int, first: int) -> int:
    """A seed of 31 bits from the experiment's seed, a step and the first node of its mini-batch.

    A step then has the same random numbers after a resume and in whichever worker, and replicas,
    whose nodes differ, have different ones.
    """
    return int(np.random.SeedSequence([seed, step, first]).generate_state(1)[0]) >> 1


def loader_options(workers: int) -> dict[str, Any]:
    """Options of torch's DataLoader, which leave the process's random numbers alone."""
    options: dict[str, Any] = {"generator": torch.Generator().manual_seed(0)}
    if workers:
        options |= {"num_workers": workers, "timeout": TIMEOUT_S, "worker_init_fn": _begin_worker}
        # Forked workers share the graph's memory.
        options["multiprocessing_context"] = "fork"
    return options


def _begin_worker(_worker: int) -> None:
    # Slurm may signal all processes of a job, while the rank still saves a checkpoint.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_when_the_rank_signals, daemon=True).start()


def _end_when_the_rank_signals() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _fetched(batches: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        # A mini-batch is fetched from the worker that made it.
        raise RuntimeError(f"{_WORKER_ERRORS[0]} ended before its mini-batch ({error})") from error


@contextlib.contextmanager
def worker_errors(library: str) -> Iterator[None]:
    """Raise GnnhpcError, which is one line, where a worker died or gave nothing."""
    try:
        yield
    except RuntimeError as error:
        line = " ".join(str(error).split()).removesuffix(".")
        if not line.startswith(_WORKER_ERRORS):
            raise
        raise GnnhpcError(f"{library}'s data loader: {line}") from error


class LibraryBlock(SampledBlock):
    """A block in a library's form, which its own layers take as it is.

    `indptr`, `source`, `target` and `edge`, which include the self-loops that libraries do not
    sample, are made when our layers or validation ask for them. `nodes` int64 [rows_out] are global
    ids of the rows of the output. `form` is the library's: here `neighbours`, int64 [2, edges
    without self-loops], rows of the output ascending, and `numbers`, those in the full graph.
    """

    def __init__(self, nodes: Tensor, rows_in: int, whole: Graph, **form: Any) -> None:
        # Fields of a frozen dataclass are set past it.
        self.__dict__.update(_nodes=nodes, rows_in=rows_in, _whole=whole, _form=form, **form)

    _nodes: Tensor
    _whole: Graph
    _form: dict[str, Any]
    numbers: Tensor

    def to(self, device: torch.device | str) -> LibraryBlock:
        if torch.device(device) == self._nodes.device:
            return self
        form = {name: value.to(device) for name, value in self._form.items()}
        return type(self)(self._nodes.to(device), self.rows_in, self._whole, **form)

    @property
    def neighbour_count(self) -> int:
        return self.neighbours.shape[1]

    @property
    def rows_out(self) -> int:
        return len(self._nodes)

    @cached_property
    def indptr(self) -> Tensor:  # type: ignore[override]
        rows = torch.arange(self.rows_out + 1, device=self._nodes.device)
        return torch.searchsorted(self.neighbours[1].contiguous(), rows) + rows

    @cached_property
    def source(self) -> Tensor:
        rows = torch.arange(self.rows_out, device=self._nodes.device)
        return self._with_loops(self.neighbours[0], rows)

    @cached_property
    def target(self) -> Tensor:
        rows = torch.arange(self.rows_out, device=self._nodes.device)
        return torch.repeat_interleave(rows, self.indptr.diff())

    @cached_property
    def edge(self) -> Tensor:
        return self._with_loops(self.numbers, self._nodes + self._whole.edges.shape[1])

    @cached_property
    def edge_weight(self) -> Tensor | None:
        return self._weights(self.edge)

    @cached_property
    def neighbour_weight(self) -> Tensor | None:
        return self._weights(self.numbers)

    def _weights(self, edge: Tensor) -> Tensor | None:
        return block_weights(self._whole.edge_weight_on(self._nodes.device), edge)

    def _with_loops(self, neighbours: Tensor, loops: Tensor) -> Tensor:
        """The values of each row's neighbours, then that of its self-loop."""
        out = neighbours.new_empty(len(neighbours) + len(loops))
        target = self.neighbours[1]
        # Every row before a neighbour's has a self-loop.
        out[torch.arange(len(target), device=target.device) + target] = neighbours
        out[self.indptr[1:] - 1] = loops
        return out
