"""Start real ranks for a test: processes with torchrun's variables, ended together."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class RankOutput:
    """How one rank ended: its exit status (negative for a signal) and what it printed."""

    rank: int
    returncode: int
    stdout: str
    stderr: str


class RankError(AssertionError):
    """A rank failed or hung; the message holds the end of each rank's stderr."""


def run_ranks(
    command: Sequence[str | Path],
    world_size: int,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    timeout: float = 120.0,
    check: bool = True,
    grace: float = 60.0,
) -> list[RankOutput]:
    """Run `command` once a rank under torchrun's variables and wait for all.

    A rank that fails gives the others `grace` seconds to notice, then all are killed. With
    `check` a failed rank raises RankError; without it the outputs are returned for the test to
    look at. One thread a rank.
    """
    with tempfile.TemporaryDirectory() as folder, lease_port() as port:
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world_size):
                with (
                    (Path(folder) / f"{rank}.out").open("wb") as out,
                    (Path(folder) / f"{rank}.err").open("wb") as err,
                ):
                    ranks.append(
                        subprocess.Popen(
                            [str(part) for part in command],
                            env=rank_environment(rank, world_size, port) | dict(env or {}),
                            cwd=cwd,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=err,
                            start_new_session=True,
                        )
                    )
            hung = not all_ended(lambda: [each.poll() for each in ranks], timeout, grace)
        finally:
            _end(ranks)
        outputs = [
            RankOutput(
                rank,
                process.returncode,
                (Path(folder) / f"{rank}.out").read_text(errors="replace"),
                (Path(folder) / f"{rank}.err").read_text(errors="replace"),
            )
            for rank, process in enumerate(ranks)
        ]
    if check and (hung or any(output.returncode for output in outputs)):
        raise RankError(describe(outputs, hung))
    return outputs


@contextlib.contextmanager
def lease_port() -> Iterator[int]:
    """A port that no other test of this machine gets while it is held.

    Below the range of outgoing connections; held by a lock on a file, which dies with us.
    """
    folder = Path(tempfile.gettempdir()) / "gnnhpc-test-ports"
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(10_000, 18_000), 500):
        with (folder / str(port)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if _is_free(port):
                yield port
                return
    raise RuntimeError("no free port between 10000 and 18000")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def torchrun_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Of one host and one thread a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """This process's variables, and torchrun's."""
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "TORCHELASTIC_"))
    }
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return outside | {
        **torchrun_variables(rank, world_size, port),
        # DETAIL would turn differing shapes into errors, but DDP's logger crashes under it
        # (torch 2.13); tests without replicas may set it.
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "PYTHONPATH": path,
    }


def all_ended(
    statuses: Callable[[], Sequence[int | None]], timeout_s: float, grace_s: float
) -> bool:
    """Wait until no exit status is None; False when time is up, or `grace_s` after the first
    failure."""
    deadline, failed = time.monotonic() + timeout_s, False
    while None in (found := statuses()):
        if not failed and any(found):
            failed = True
            deadline = min(deadline, time.monotonic() + grace_s)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Kill what still runs, with all that it started."""
    for process in ranks:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def describe(outputs: list[RankOutput], hung: bool) -> str:
    """The end of what each printed to stderr."""
    parts = ["ranks were still running and were killed" if hung else "a rank failed"]
    for output in outputs:
        tail = "\n".join(output.stderr.splitlines()[-25:])
        parts.append(f"-- rank {output.rank}: exit {output.returncode}\n{tail}")
    return "\n".join(parts)


def _main(folder: Path) -> None:
    """Call the function that FOLDER/call names, and leave its value in FOLDER by rank."""
    module, name, arguments = pickle.loads((folder / "call").read_bytes())
    value = getattr(importlib.import_module(module), name)(*arguments)
    (folder / os.environ["RANK"]).write_bytes(pickle.dumps(value))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
