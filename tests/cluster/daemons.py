"""A cluster in its folder: commands of its users, and daemons that are started and written down."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import processes
from tests.cluster.processes import Process

SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


class ClusterError(Exception):
    """The cluster did not start, or a command on it failed."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster; its folder is all that is needed to use or stop it."""

    root: Path

    @property
    def slurm_conf(self) -> Path:
        return self.root / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """This process's variables without a surrounding job's, pointing at the cluster."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH_", "SQUEUE_", "SACCT_", "SALLOC_"))
        }
        return kept | {"SLURM_CONF": str(self.slurm_conf), "PATH": SEARCH_PATH}

    def run(
        self,
        *command: str | Path,
        check: bool = True,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the cluster; raises ClusterError if it fails."""
        done = subprocess.run(
            [str(part) for part in command],
            env=self.environment() | (env or {}),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            line = " ".join(str(part) for part in command)
            raise ClusterError(f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done


def start_daemon(
    root: Path,
    name: str,
    *command: str,
    env: dict[str, str] | None = None,
    mark: str | None = None,
) -> Process:
    """Start a daemon in the foreground mode it has, and write down who it is."""
    environment = Cluster(root).environment() | {processes.MARK: mark or str(root)} | (env or {})
    with (root / "log" / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            env=environment,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    process = Process.of(child.pid)
    if process is None:
        raise ClusterError(f"{name} ended at once:\n{tail(root, name)}")
    (root / "pids" / name).write_text(process.to_line())
    return process


def run(root: Path, *command: str) -> None:
    """A command in the cluster's folder; raises ClusterError if it fails."""
    Cluster(root).run(*command, cwd=root)


def recorded(root: Path) -> dict[str, Process]:
    files = sorted((root / "pids").glob("*"))
    return {file.name: Process.from_line(file.read_text()) for file in files}


def wait(root: Path, name: str, ready: Callable[[], bool], patience_s: float) -> None:
    """Until `ready`; raises ClusterError with the daemon's last words if it died or is late."""
    deadline = time.monotonic() + patience_s
    while not ready():
        if not recorded(root)[name].alive:
            raise ClusterError(f"{name} ended:\n{tail(root, name)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{name} is not ready after {patience_s} s:\n{tail(root, name)}")
        time.sleep(0.05)


def tail(root: Path, name: str) -> str:
    log = root / "log" / f"{name}.log"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def accepts(address: Path | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        return client.connect_ex(str(address) if isinstance(address, Path) else address) == 0
