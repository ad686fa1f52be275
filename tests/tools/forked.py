"""Ranks that start in no time: forked from a process that has imported torch and computed nothing.

Each is a process of its own that runs `python -m gnnhpc`, or calls a function, with torchrun's
variables, as `tests.tools.ranks.run_ranks` would start it, without the seconds of importing. A
plant is a function that the process calls first, to do damage from inside.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeVar

from gnnhpc.cli import keep_numpy_to_one_thread
from gnnhpc.distributed.environment import local_rank_variables
from tests.tools.ranks import check_ended, lease_port, rank_environment

# A rank calls it before it imports numpy, which these have when they start.
keep_numpy_to_one_thread()

PRELOADED = [
    "pytest",
    "rich.console",
    "rich.table",
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "yaml",
    "gnnhpc.batches.chunk_batches",
    "gnnhpc.batches.image_batches",
    "gnnhpc.validation.boundary",
    "gnnhpc.validation.engine_parity",
    "gnnhpc.cli",
    "gnnhpc.engines.native",
    "gnnhpc.engines.sequential",
    "gnnhpc.engines.libraries.torch_pipelining",
    "gnnhpc.models.layers.attention_layers",
    "gnnhpc.models.layers.pyg_layers",
    "gnnhpc.models.vig.fused",
    "gnnhpc.models.vig.reference",
    "gnnhpc.distributed.watchdog",
    "gnnhpc.experiment.flags",
    "gnnhpc.training.checkpoint",
    "gnnhpc.training.loop",
    "gnnhpc.training.setup",
    "gnnhpc.training.training_run",
    "gnnhpc.training.worker",
    "tests.tools.dgl_imported",
]
Plant = Callable[[], None]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """Running ranks of one command; what rank n prints goes to `folder`/n.out and n.err."""

    processes: Sequence[ForkServerProcess]
    folder: Path

    def wait(self, timeout_s: float = 240.0) -> list[int | None]:
        """Exit statuses, negative for a signal; none where time ran out and a rank was killed."""
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


@contextlib.contextmanager
def started(
    arguments: Sequence[object],
    world_size: int,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    plant: Plant | None = None,
) -> Iterator[Ranks]:
    """`python -m gnnhpc ARGUMENTS` on this many ranks; whoever still runs at the end is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["gnnhpc", *map(str, arguments)]
    # Threads of a rank that wait for each other take long on a busy machine.
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "GNNHPC_THREADS": "1"}
    own |= env or {}
    with lease_port() as port:
        variables = [local_rank_variables(n, world_size, port, {}) | own for n in range(world_size)]
        calls = [(argv, folder, n, each, plant) for n, each in enumerate(variables)]
        with _forked(_be_rank, calls) as processes:
            yield Ranks(processes, folder)


def spawn(
    function: Callable[..., Value],
    world_size: int,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
    grace_s: float = 60.0,
) -> list[Value]:
    """Call a module-level function on every rank, in one thread; its values, by rank.

    The function finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in os.environ, so that
    `torch.distributed.init_process_group("gloo")` needs nothing else. Where a rank fails the others
    have `grace_s` seconds to notice. Raises RankError where one failed or hung.
    """
    with tempfile.TemporaryDirectory() as name, lease_port() as port:
        folder = Path(name)
        ranks = range(world_size)
        variables = [rank_environment(n, world_size, port) | dict(env or {}) for n in ranks]
        with _forked(
            _call, [(folder, each, function, arguments) for each in variables]
        ) as processes:
            check_ended(folder, lambda: [each.exitcode for each in processes], timeout_s, grace_s)
        return [pickle.loads((folder / f"{n}.value").read_bytes()) for n in ranks]


@contextlib.contextmanager
def _forked(
    target: Callable[..., None], calls: Sequence[tuple[object, ...]]
) -> Iterator[list[ForkServerProcess]]:
    """A process for each of these calls; whoever still runs at the end is killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = []
    try:
        for arguments in calls:
            process = context.Process(target=target, args=arguments)
            process.start()
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def _call(
    folder: Path,
    variables: dict[str, str],
    function: Callable[..., Value],
    arguments: tuple[object, ...],
) -> None:
    import torch

    rank = int(variables["RANK"])
    _print_to(folder, rank)
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))
    value = function(*arguments)
    (folder / f"{rank}.value").write_bytes(pickle.dumps(value))


def _print_to(folder: Path, rank: int) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)


def _be_rank(
    argv: list[str], folder: Path, rank: int, variables: dict[str, str], plant: Plant | None
) -> None:
    _print_to(folder, rank)
    for name in [n for n in os.environ if n.startswith(("SLURM_", "GNNHPC_"))]:
        del os.environ[name]
    os.environ.update(variables)
    sys.argv = argv
    if plant is not None:
        plant()
    from gnnhpc.cli import main

    sys.exit(main())
