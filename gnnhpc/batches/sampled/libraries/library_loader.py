"""What our uses of PyG's and DGL's data loaders share: random numbers, workers, and chunks."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.queues
import os
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk
from gnnhpc.graphs.graph import Graph

START_METHOD = "fork"
"""Of workers: they share the graph's memory, and need none of /dev/shm for it."""

SHARED_MEMORY = "/dev/shm"
_PR_SET_PDEATHSIG = 1
_OF_WORKERS = ("DataLoader worker", "DataLoader timed out")
"""How torch begins to say that a worker died, or that none gave anything."""


def random_seed(seed: int, step: int, first: int) -> int:
    """For a library's random numbers, 31 bits: of the experiment's seed, a step and the first node
    of its mini-batch.

    A step's draws are then those of an undisturbed run after a resume, whichever worker draws, and
    replicas, whose nodes differ, draw apart.
    """
    return int(np.random.SeedSequence([seed, step, first]).generate_state(1)[0]) >> 1


def loader_options(workers: int, timeout_s: float) -> dict[str, Any]:
    """Of torch's DataLoader, which is below both. It draws a number, but none of the caller's."""
    options: dict[str, Any] = {"generator": torch.Generator().manual_seed(0)}
    if workers:
        options |= {"num_workers": workers, "timeout": timeout_s, "worker_init_fn": _begin_worker}
        options["multiprocessing_context"] = START_METHOD
    return options


def _begin_worker(_worker: int) -> None:
    # It holds its rank's sockets: as long as it lives, others do not see that the rank has ended.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        threading.Thread(target=_end_when_the_rank_says, daemon=True).start()
    # A batch that does not fit into /dev/shm would be dropped, and waited for without end.
    queue: Any = multiprocessing.queues.Queue
    queue._on_queue_feeder_error = staticmethod(_end_worker)


@contextmanager
def _deaf_to_others() -> Iterator[None]:
    """Processes that begin in here heed SIGTERM from their rank alone, once they have begun.

    Who ends a job may tell all its processes, and the rank has a step to end and to save.
    """
    if sys.platform != "linux":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_when_the_rank_says() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _end_worker(error: Exception, _batch: object) -> None:
    try:
        # What it could not fill, torch leaves behind under the worker's number.
        for place in Path(SHARED_MEMORY).glob(f"torch_{os.getpid()}_*"):
            place.unlink()
        traceback.print_exception(error)
    finally:
        os._exit(1)


@contextmanager
def running(loader: DataLoader[Any], library: str) -> Iterator[Iterator[Any]]:
    """What the loader yields; its workers start now, and have ended when this is left.

    Raises what a worker raised where the mini-batch is taken, and GnnhpcError where one has died
    or has given nothing for the time allowed: of a death torch may hear at any moment.
    """
    with warnings.catch_warnings(), _deaf_to_others():
        warnings.filterwarnings("ignore", message="Dataloader CPU affinity opt is not enabled")
        batches = iter(loader)
    try:
        with deaths_named(library):
            yield _fetched(batches)
    finally:
        _end_workers(batches)


@contextmanager
def deaths_named(library: str) -> Iterator[None]:
    """Raises GnnhpcError in one line where torch says that a worker died or gave nothing, which
    it does in whatever the process computes just then."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(_OF_WORKERS):
            raise
        raise GnnhpcError(f"{library}'s data loader: {_why(str(error))}") from error


def _fetched(batches: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        # What a worker has made is fetched from the worker itself.
        raise RuntimeError(f"{_OF_WORKERS[0]} gone before its batch was taken ({error})") from error


def _why(message: str) -> str:
    """In one line, with what most often ends workers."""
    line = " ".join(message.split()).removesuffix(".")
    if not line.startswith(_OF_WORKERS[0]):
        return line
    with contextlib.suppress(OSError):
        size = shutil.disk_usage(SHARED_MEMORY).total >> 20
        line += f"; {SHARED_MEMORY}, through which mini-batches pass, has {size} MiB"
    return line


def _end_workers(batches: Any) -> None:
    """torch ends them when its iterator is dropped, which others may still hold."""
    inner = getattr(batches, "dataloader_it", batches)
    end = getattr(inner, "_shutdown_workers", None)
    if end is None:
        return
    try:
        end()
    except RuntimeError as error:
        # Torch's handler of a child's death speaks whenever that comes; the others must end too.
        if not str(error).startswith(_OF_WORKERS):
            raise
        end()


class Chunks:
    """Makes mini-batches of one graph from blocks that a library drew."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.degree = graph.in_edges.degrees
        self._full = FullGraph.of(graph)

    @property
    def indptr(self) -> Tensor:
        """int64 [nodes + 1]: where each node's edges begin."""
        return self.graph.in_edges.indptr

    def chunk(self, nodes: Tensor, seeds: int, blocks: Sequence[Block]) -> GraphChunk:
        """Of these global ids int64 [rows], the first `seeds` of them to be learnt from."""
        rows = (*(block.rows_in for block in blocks), blocks[-1].rows_out)
        return GraphChunk(
            nodes=nodes,
            rows=rows,
            blocks=tuple(blocks),
            degree=self.degree[nodes] + 1,
            targets=self.graph.targets(nodes[:seeds], rows[-1]),
            own=seeds,
            full=self._full,
            sampled=True,
        )
