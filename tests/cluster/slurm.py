"""Start and stop a real Slurm: munge, MariaDB, slurmdbd, slurmctld and one slurmd a node.

Everything lives in one folder with its own ports, keys and sockets, so that several clusters run
side by side and beside a Slurm the machine may already have. Only pids that were written down
are ever signalled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import config, hosts, processes
from tests.cluster.config import Settings
from tests.cluster.daemons import (
    SEARCH_PATH,
    Cluster,
    ClusterError,
    recorded,
    start_daemon,
    wait,
)
from tests.cluster.processes import Process
from tests.cluster.services import start_accounting, start_munge

PREFIX = "gnnhpc-slurm-"
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "sacctmgr",
    "srun",
    "sbatch",
    "sacct",
    "munged",
    "mungekey",
    "mariadbd",
    "mariadb-install-db",
)
INSTALL = "apt-get install slurm-wlm slurmdbd munge mariadb-server"


def obstacle() -> str | None:
    """Why no cluster can start here, in one line; None when it can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=SEARCH_PATH) is None]
    if missing:
        return f"cluster tests need {', '.join(missing)}: {INSTALL}"
    if os.geteuid() != 0:
        return "cluster tests need root: slurmd starts tasks as other users"
    return None


def start(root: Path, owner: int | None = None) -> Cluster:
    """Start a cluster in `root`; with an owner it is stopped once that process is dead."""
    if (reason := obstacle()) is not None:
        raise ClusterError(reason)
    if len(str(root)) > 80:
        raise ClusterError(f"{root} is too long: socket names have at most 107 characters")
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise ClusterError(f"{root} is not empty")
    root.chmod(0o755)
    if owner is not None and (process := Process.of(owner)) is not None:
        (root / "owner").write_text(process.to_line())
    with _one_at_a_time():
        stop_abandoned()
        try:
            return _start(root)
        except BaseException:
            with contextlib.suppress(OSError):
                _stop(root)
            raise


def daemons(root: Path) -> list[Process]:
    """The daemons that were started, with the helpers they keep."""
    return processes.with_children(recorded(root).values())


def all_processes(root: Path) -> list[Process]:
    """All that a cluster runs: daemons, steps and the tasks in them."""
    return processes.with_children(_marked(root))


def node_processes(root: Path, node: str) -> list[Process]:
    """A node's slurmd and all that runs on that node; empty while it is down."""
    return processes.with_children(processes.marked(f"{root}/{node}"))


def start_node(root: Path, node: str) -> None:
    """Start a node's slurmd again."""
    start_daemon(root, f"slurmd-{node}", "slurmd", "-D", "-N", node, mark=f"{root}/{node}")


def stop(root: Path) -> None:
    """Cancel the jobs, stop every daemon in order, and leave no process behind."""
    with _one_at_a_time():
        _stop(root)


def stop_abandoned() -> None:
    """Stop and remove the clusters whose owner died without doing so."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/owner"):
        with contextlib.suppress(OSError, ValueError):
            if not Process.from_line(owner.read_text()).alive:
                _stop(owner.parent)
                shutil.rmtree(owner.parent)


def _start(root: Path) -> Cluster:
    names = config.NODES
    ports = _free_ports(2 + len(names))
    settings = Settings(root, ports[0], ports[1], dict(zip(names, ports[2:], strict=True)))
    for folder in ("log", "pids", "state", *(f"spool/{name}" for name in names)):
        (root / folder).mkdir(parents=True)
    if not all(hosts.resolves(name) for name in config.NODES):
        hosts.add(config.NODES)
    cluster = Cluster(root)
    settings.slurm_conf.write_text(config.slurm_conf(settings))
    start_munge(settings)
    start_accounting(settings)
    start_daemon(root, "slurmctld", "slurmctld", "-D")
    for name in names:
        start_node(root, name)

    def nodes_are_idle() -> bool:
        shown = cluster.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.split("\n")
        return {line for line in shown if line} == {f"{name} idle" for name in names}

    wait(root, "slurmctld", nodes_are_idle, 60)
    return cluster


def _stop(root: Path) -> None:
    cluster = Cluster(root)
    known = recorded(root)
    if "slurmctld" in known and known["slurmctld"].alive:
        with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
            jobs = cluster.run("squeue", "-h", "-o", "%A", timeout=20).stdout.split()
            if jobs:
                cluster.run("scancel", "--full", "--signal=KILL", *set(jobs), timeout=20)
                cluster.run("scancel", *set(jobs), timeout=20, check=False)
    nodes = [name for name in known if name.startswith("slurmd-")]
    steps = set(all_processes(root)) - set(daemons(root))
    processes.wait_for_end(steps, 10)
    processes.stop(known[name] for name in nodes)
    for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
        if name in known:
            processes.stop([known[name]])
    processes.stop(all_processes(root), 5)
    shutil.rmtree(root / "pids", ignore_errors=True)
    others = Path(tempfile.gettempdir()).glob(f"{PREFIX}*/pids/slurmctld")
    if not any(Process.from_line(pid.read_text()).alive for pid in others):
        hosts.remove()


def _marked(root: Path) -> list[Process]:
    """Every daemon of this cluster, and what the nodes started."""
    return processes.marked(str(root), *(f"{root}/{node}" for node in config.NODES))


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, between those that tests lease and those that ranks try."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(18_000, 20_000), 500):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise ClusterError(f"no {count} free ports between 18000 and 20000")


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two starts at once would race for ports and for /etc/hosts."""
    lock = Path(tempfile.gettempdir()) / "gnnhpc-slurm.lock"
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
