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
from pathlib import Path

from gnnhpc.distributed.environment import local_rank_variables

ROOT = Path(__file__).parents[2]


class RankError(AssertionError):
    """A rank failed or hung; the message holds the end of each rank's stderr."""


def run_ranks(
    command: Sequence[str | Path], world_size: int, folder: Path, env: Mapping[str, str]
) -> None:
    """Run `command` once a rank under torchrun's variables, in one thread, and wait for all.

    What rank n prints goes to `folder`/n.out and n.err. Raises RankError where one failed or hung.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    with lease_port() as port:
        try:
            for rank in range(world_size):
                out, err = folder / f"{rank}.out", folder / f"{rank}.err"
                with out.open("wb") as stdout, err.open("wb") as stderr:
                    process = subprocess.Popen(
                        [str(part) for part in command],
                        env=rank_environment(rank, world_size, port) | dict(env),
                        cwd=ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        start_new_session=True,
                    )
                ranks.append(process)
            check_ended(folder, lambda: [each.poll() for each in ranks], 120.0, 60.0)
        finally:
            for process in ranks:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()


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


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """This process's variables, and torchrun's; one thread a rank."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return local_rank_variables(rank, world_size, port) | {
        "OMP_NUM_THREADS": "1",
        # DETAIL would turn differing shapes into errors, but DDP's logger crashes under it
        # (torch 2.13); tests without replicas may set it.
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "PYTHONPATH": path,
    }


def check_ended(
    folder: Path, statuses: Callable[[], Sequence[int | None]], timeout_s: float, grace_s: float
) -> None:
    """Wait for ranks that print to `folder`/n.err, `grace_s` longer after the first failure.

    Raises RankError where one failed, or time is up.
    """
    deadline, failed = time.monotonic() + timeout_s, False
    while None in (found := statuses()) and time.monotonic() < deadline:
        if not failed and any(found):
            failed = True
            deadline = min(deadline, time.monotonic() + grace_s)
        time.sleep(0.01)
    if any(status != 0 for status in found):
        parts = ["ranks failed, or were still running"]
        for rank, status in enumerate(found):
            lines = (folder / f"{rank}.err").read_text(errors="replace").splitlines()
            parts.append("\n".join([f"-- rank {rank}: exit {status}", *lines[-25:]]))
        raise RankError("\n".join(parts))


def _main(folder: Path) -> None:
    """Call the function that FOLDER/call names, and leave its value in FOLDER by rank."""
    module, name, arguments = pickle.loads((folder / "call").read_bytes())
    value = getattr(importlib.import_module(module), name)(*arguments)
    (folder / os.environ["RANK"]).write_bytes(pickle.dumps(value))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
