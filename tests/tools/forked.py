"""Ranks that start in no time: forked from a process that has imported torch and computed nothing.

Each is a process of its own that runs `python -m gnnhpc`, or calls a function, with torchrun's
variables. A plant is a function that the process calls first, to do damage from inside.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import pickle
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TextIO, TypeVar

from gnnhpc.cli import keep_numpy_to_one_thread
from gnnhpc.distributed.environment import local_rank_variables

# A rank calls it before it imports numpy, which these have when they start.
keep_numpy_to_one_thread()

ROOT = Path(__file__).parents[2]
Plant = Callable[[], None]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """Running ranks of one command; what rank n prints goes to `folder`/n.out and n.err."""

    processes: Sequence[ForkServerProcess]
    folder: Path

    def wait(self, timeout_s: float = 240.0) -> list[int | None]:
        """Exit statuses, negative for a signal; none where time ran out."""
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()

    def out(self, rank: int) -> str:
        return (self.folder / f"{rank}.out").read_text(errors="replace")

    def err(self, rank: int) -> str:
        return (self.folder / f"{rank}.err").read_text(errors="replace")


def started(
    arguments: Sequence[object],
    world_size: int,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    plant: Plant | None = None,
) -> contextlib.AbstractContextManager[Ranks]:
    """`python -m gnnhpc ARGUMENTS` on this many ranks; whoever still runs at the end is killed."""
    command = partial(_command, ["gnnhpc", *map(str, arguments)], plant)
    own = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "GNNHPC_THREADS": "1"}
    return _forked(command, world_size, folder, own | dict(env or {}))


def spawn(
    function: Callable[..., Value],
    world_size: int,
    *arguments: object,
    env: Mapping[str, str] | None = None,
) -> list[Value]:
    """Call a module-level function on every rank, in one thread; its values, by rank.

    The function finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in os.environ, so that
    `torch.distributed.init_process_group("gloo")` needs nothing else. Fails the test where a rank
    failed or hung.
    """
    # DETAIL would find differing shapes, but DDP's logger crashes under it (torch 2.13).
    own = {"TORCH_DISTRIBUTED_DEBUG": "INFO"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call = partial(_value, function, arguments, folder)
        with _forked(call, world_size, folder, own | dict(env or {})) as ranks:
            statuses = ranks.wait(120.0)
            errors = "\n".join(ranks.err(rank)[-2000:] for rank in range(world_size))
            assert statuses == [0] * world_size, errors
        return [pickle.loads((folder / f"{n}.value").read_bytes()) for n in range(world_size)]


@contextlib.contextmanager
def _forked(
    call: Callable[[], None], world_size: int, folder: Path, env: dict[str, str]
) -> Iterator[Ranks]:
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.tools.preloaded"])
    # Threads of a rank that wait for each other take long on a busy machine.
    env = {"OMP_NUM_THREADS": "1"} | env
    processes = []
    with lease_port() as port:
        try:
            for rank in range(world_size):
                clean = local_rank_variables(rank, world_size, port).items()
                variables = {k: v for k, v in clean if not k.startswith("GNNHPC_")} | env
                process = context.Process(target=_be_rank, args=(call, folder, rank, variables))
                process.start()
                processes.append(process)
            yield Ranks(processes, folder)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _be_rank(call: Callable[[], None], folder: Path, rank: int, variables: dict[str, str]) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(variables)
    call()


def _command(argv: list[str], plant: Plant | None) -> None:
    sys.argv = argv
    if plant is not None:
        plant()
    from gnnhpc.cli import main

    sys.exit(main())


def _value(function: Callable[..., object], arguments: tuple[object, ...], folder: Path) -> None:
    import torch

    torch.set_num_threads(1)
    value = function(*arguments)
    (folder / f"{os.environ['RANK']}.value").write_bytes(pickle.dumps(value))


@contextlib.contextmanager
def lease_port() -> Iterator[int]:
    """A port that no other test of this machine gets while it is held.

    Below the range of outgoing connections; held by a lock on a file, which dies with us.
    """
    folder = Path(tempfile.gettempdir()) / "gnnhpc-test-ports"
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(10_000, 18_000), 500):
        with (folder / str(port)).open("w") as lock:
            if _is_free(lock, port):
                yield port
                return
    raise RuntimeError("no free port between 10000 and 18000")


def _is_free(lock: TextIO, port: int) -> bool:
    """Whether it is neither locked by another test nor bound by another program."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("", port))
    except OSError:
        return False
    return True
