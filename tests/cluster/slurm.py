"""Start and stop a real Slurm: munge, MariaDB, slurmdbd, slurmctld and one slurmd a node.

Everything lives in one folder with its own ports, keys and sockets, so that several clusters run
side by side and beside a Slurm the machine may already have. Only pids that were written down
are ever signalled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import config, hosts, processes
from tests.cluster.config import Settings
from tests.cluster.processes import Process

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
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


class ClusterError(Exception):
    """The cluster did not start, or a command on it failed."""


def obstacle() -> str | None:
    """Why no cluster can start here, in one line; None when it can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=SEARCH_PATH) is None]
    if missing:
        return f"cluster tests need {', '.join(missing)}: {INSTALL}"
    if os.geteuid() != 0:
        return "cluster tests need root: slurmd starts tasks as other users"
    return None


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
    return processes.with_children(_recorded(root).values())


def all_processes(root: Path) -> list[Process]:
    """All that a cluster runs: daemons, steps and the tasks in them."""
    return processes.with_children(_marked(root))


def node_processes(root: Path, node: str) -> list[Process]:
    """A node's slurmd and all that runs on that node; empty while it is down."""
    return processes.with_children(processes.marked(f"{root}/{node}"))


def start_node(root: Path, node: str) -> None:
    """Start a node's slurmd again."""
    _start_daemon(root, f"slurmd-{node}", "slurmd", "-D", "-N", node, mark=f"{root}/{node}")


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
    ports = _free_ports(2 + len(config.NODES) + len(config.UNRESOLVED))
    names = (*config.NODES, *config.UNRESOLVED)
    settings = Settings(root, ports[0], ports[1], dict(zip(names, ports[2:], strict=True)))
    for folder in ("log", "pids", "state", *(f"spool/{name}" for name in names)):
        (root / folder).mkdir(parents=True)
    if not all(hosts.resolves(name) for name in config.NODES):
        hosts.add(config.NODES)
    cluster = Cluster(root)
    settings.slurm_conf.write_text(config.slurm_conf(settings))
    _start_munge(settings)
    _start_accounting(settings)
    _start_daemon(root, "slurmctld", "slurmctld", "-D")
    for name in names:
        start_node(root, name)

    def nodes_are_idle() -> bool:
        shown = cluster.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.split("\n")
        return {line for line in shown if line} == {f"{name} idle" for name in names}

    _wait(root, "slurmctld", nodes_are_idle, 60)
    return cluster


def _start_munge(settings: Settings) -> None:
    root = settings.root
    key = root / "munge.key"
    _run(root, "mungekey", "-c", "-k", str(key))
    _start_daemon(
        root,
        "munged",
        "munged",
        "--foreground",
        "--force",
        f"--socket={settings.munge_socket}",
        f"--key-file={key}",
        f"--pid-file={root}/munged.pid",
        f"--log-file={root}/log/munged.own.log",
        f"--seed-file={root}/munged.seed",
    )


def _start_accounting(settings: Settings) -> None:
    """MariaDB, slurmdbd and the cluster's name in it; slurmctld does not start without."""
    root = settings.root
    password = secrets.token_hex(16)
    data = f"--datadir={root}/mariadb"
    _run(
        root,
        "mariadb-install-db",
        "--no-defaults",
        data,
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
        *config.DATABASE_OPTIONS,
    )
    setup = root / "database.sql"
    setup.touch(0o600)
    setup.write_text(config.database_setup(password))
    conf = root / "slurmdbd.conf"
    conf.touch(0o600)
    conf.write_text(config.slurmdbd_conf(settings, password))
    _start_daemon(
        root,
        "mariadbd",
        "mariadbd",
        "--no-defaults",
        data,
        f"--socket={settings.database_socket}",
        f"--init-file={setup}",
        f"--pid-file={root}/mariadb.pid",
        *config.DATABASE_OPTIONS,
    )
    _wait(root, "munged", lambda: _accepts(settings.munge_socket), 30)
    _wait(root, "mariadbd", lambda: _accepts(settings.database_socket), 60)
    # libmariadb looks here for the socket of "localhost".
    database = {"MYSQL_UNIX_PORT": str(settings.database_socket)}
    _start_daemon(root, "slurmdbd", "slurmdbd", "-D", env=database)
    _wait(root, "slurmdbd", lambda: _accepts(("127.0.0.1", settings.dbd_port)), 60)
    _run(root, "sacctmgr", "-i", "add", "cluster", config.CLUSTER_NAME)


def _stop(root: Path) -> None:
    cluster = Cluster(root)
    known = _recorded(root)
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


def _start_daemon(
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
        raise ClusterError(f"{name} ended at once:\n{_tail(root, name)}")
    (root / "pids" / name).write_text(process.to_line())
    return process


def _run(root: Path, *command: str) -> None:
    done = subprocess.run(
        command,
        env=Cluster(root).environment(),
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stdout}\n{done.stderr}")


def _marked(root: Path) -> list[Process]:
    """Every daemon of this cluster, and what the nodes started."""
    nodes = (*config.NODES, *config.UNRESOLVED)
    return processes.marked(str(root), *(f"{root}/{node}" for node in nodes))


def _recorded(root: Path) -> dict[str, Process]:
    files = sorted((root / "pids").glob("*"))
    return {file.name: Process.from_line(file.read_text()) for file in files}


def _wait(root: Path, name: str, ready: Callable[[], bool], patience_s: float) -> None:
    """Until `ready`; raises ClusterError with the daemon's last words if it died or is late."""
    deadline = time.monotonic() + patience_s
    while not ready():
        if not _recorded(root)[name].alive:
            raise ClusterError(f"{name} ended:\n{_tail(root, name)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{name} is not ready after {patience_s} s:\n{_tail(root, name)}")
        time.sleep(0.05)


def _tail(root: Path, name: str) -> str:
    log = root / "log" / f"{name}.log"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def _accepts(address: Path | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        return client.connect_ex(str(address) if isinstance(address, Path) else address) == 0


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, below the range that outgoing connections take theirs from."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(18_000, 32_000), 2_000):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise ClusterError(f"no {count} free ports between 18000 and 32000")


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two starts at once would race for ports and for /etc/hosts."""
    lock = Path(tempfile.gettempdir()) / "gnnhpc-slurm.lock"
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def describe(root: Path) -> str:
    """What runs, one line a daemon, as JSON."""
    alive = {name: process.alive for name, process in _recorded(root).items()}
    return json.dumps(alive, indent=1)
