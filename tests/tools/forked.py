"""Ranks that start in no time: forked from a process that has imported torch and computed nothing.

Each is a process of its own that runs `python -m gnnhpc` with torchrun's variables, as
`tests.tools.ranks.run_ranks` would start it, without the seconds of importing. A plant is a
function that the process calls first, to do damage from inside.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from gnnhpc.core.numpy_threads import keep_numpy_to_one_thread
from tests.tools.ranks import lease_port

# A rank calls it before it imports numpy, which these have when they start.
keep_numpy_to_one_thread()

PRELOADED = [
    "rich.console",
    "rich.table",
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "yaml",
    "gnnhpc.batches.chunk_batches",
    "gnnhpc.batches.image_batches",
    "gnnhpc.check.verify",
    "gnnhpc.check.verify_command",
    "gnnhpc.cli",
    "gnnhpc.engines.native",
    "gnnhpc.engines.sequential",
    "gnnhpc.engines.torch_pipelining",
    "gnnhpc.models.convolutions.pyg",
    "gnnhpc.models.gat.fused",
    "gnnhpc.models.gat.pyg",
    "gnnhpc.models.vig.fused",
    "gnnhpc.models.vig.readout",
    "gnnhpc.models.vig.reference",
    "gnnhpc.ranks.watchdog",
    "gnnhpc.run.header",
    "gnnhpc.run.results",
    "gnnhpc.run.worker",
    "gnnhpc.spec.cli_experiment",
    "gnnhpc.train.checkpoint",
    "gnnhpc.train.loop",
    "gnnhpc.train.progress",
    "gnnhpc.train.setup",
    "tests.tools.dgl_imported",
]
Plant = Callable[[], None]


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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["gnnhpc", *map(str, arguments)]
    with lease_port() as port:
        processes = [
            context.Process(
                target=_be_rank,
                args=(argv, folder, rank, _variables(rank, world_size, port, env), plant),
            )
            for rank in range(world_size)
        ]
        try:
            for process in processes:
                process.start()
            yield Ranks(processes, folder)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _variables(
    rank: int, world_size: int, port: int, env: Mapping[str, str] | None
) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    } | dict(env or {})


def _be_rank(
    argv: list[str], folder: Path, rank: int, variables: dict[str, str], plant: Plant | None
) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    for name in [n for n in os.environ if n.startswith(("SLURM_", "SUBMITIT_", "GNNHPC_"))]:
        del os.environ[name]
    os.environ.update(variables)
    sys.argv = argv
    if plant is not None:
        plant()
    from gnnhpc.cli import main

    sys.exit(main())
