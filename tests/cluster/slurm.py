"""Start and stop a real Slurm: munge, MariaDB, slurmdbd, slurmctld and one slurmd a node.

Everything lives in one folder with its own ports, keys and sockets, beside a Slurm that the machine
may have. Its processes carry the folder's name in a variable: no others are ever signalled.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

from tests.cluster import config

PREFIX = "gnnhpc-slurm-"
MARK = "GNNHPC_TEST_CLUSTER"
"""Variable that says whose a process is: a cluster's folder, or a node's below it."""
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
PROGRAMS = (
    *("slurmctld", "slurmd", "slurmdbd", "sacctmgr", "srun", "sbatch", "sacct"),
    *("munged", "mungekey", "mariadbd", "mariadb-install-db"),
)
HOSTS = Path("/etc/hosts")
HOSTS_MARK = "# gnnhpc tests/cluster"


class ClusterError(Exception):
    """The cluster did not start, or a command on it failed."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster; its folder is all that is needed to use or stop it."""

    root: Path

    def environment(self, node: str = "") -> dict[str, str]:
        """This process's variables without a surrounding job's, pointing at the cluster."""
        others = ("SLURM", "SBATCH_", "SQUEUE_", "SACCT_", "SALLOC_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        conf = {"SLURM_CONF": str(self.root / "slurm.conf"), "PATH": SEARCH_PATH}
        return kept | conf | {MARK: str(self.root / node)}

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

    def processes(self, node: str = "") -> list[psutil.Process]:
        """All that the cluster runs, or a node of it: daemons, steps and the tasks in them."""
        mark = str(self.root / node)
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                value = process.environ().get(MARK, "")
                if value == mark or value.startswith(f"{mark}/"):
                    children = process.children(recursive=True)
                    found |= {one.pid: one for one in (process, *children)}
        return list(found.values())

    def start_node(self, node: str) -> None:
        self._daemon("slurmd", "-D", "-N", node, node=node)

    def start(self, ports: list[int]) -> None:
        """Start every daemon, each when those that it needs answer; then wait for the nodes."""
        for folder in ("log", "state", *(f"spool/{name}" for name in config.NODES)):
            (self.root / folder).mkdir(parents=True)
        (self.root / "slurm.conf").write_text(config.slurm_conf(self.root, *ports))
        self._start_munge()
        self._start_accounting(ports[1])
        controller = self._daemon("slurmctld", "-D")
        for name in config.NODES:
            self.start_node(name)

        def nodes_are_idle() -> bool:
            shown = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.split("\n")
            return {line for line in shown if line} == {f"{name} idle" for name in config.NODES}

        self._wait(controller, nodes_are_idle)

    def _start_munge(self) -> None:
        root = self.root
        self.run("mungekey", "-c", "-k", root / "munge.key")
        files = (f"--key-file={root}/munge.key", f"--pid-file={root}/munged.pid")
        files += (f"--log-file={root}/log/munged.own.log", f"--seed-file={root}/munged.seed")
        address = root / config.MUNGE_SOCKET
        munged = self._daemon("munged", "--foreground", "--force", f"--socket={address}", *files)
        self._wait(munged, lambda: accepts(address))

    def _start_accounting(self, port: int) -> None:
        """MariaDB, slurmdbd and the cluster's name in it; slurmctld does not start without."""
        root, password = self.root, secrets.token_hex(16)
        options = ("--no-defaults", f"--datadir={root}/mariadb", *config.DATABASE_OPTIONS)
        login = ("--skip-test-db", "--auth-root-authentication-method=normal")
        self.run("mariadb-install-db", *options, *login, cwd=root)
        texts = {
            "database.sql": config.database_setup(password),
            "slurmdbd.conf": config.slurmdbd_conf(root, port, password),
        }
        for name, text in texts.items():
            (root / name).touch(0o600)
            (root / name).write_text(text)
        address = root / config.DATABASE_SOCKET
        files = (f"--socket={address}", f"--init-file={root}/database.sql")
        database = self._daemon("mariadbd", *options, *files, f"--pid-file={root}/mariadb.pid")
        self._wait(database, lambda: accepts(address))
        # libmariadb reads this for the socket of "localhost".
        env = {"MYSQL_UNIX_PORT": str(address)}
        accounting = self._daemon("slurmdbd", "-D", env=env)
        self._wait(accounting, lambda: accepts(("127.0.0.1", port)))
        for command in (
            ("add", "cluster", config.CLUSTER_NAME),
            ("add", "qos", "few", f"MaxSubmitJobsPerUser={config.FEW_JOBS}"),
            ("modify", "user", "root", "set", "qos=normal,few", "defaultqos=normal"),
        ):
            self.run("sacctmgr", "-i", *command)

    def _daemon(
        self, program: str, *options: str, node: str = "", env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a daemon in the foreground mode it has."""
        with (self.root / "log" / f"{program}{node}.log").open("ab") as log:
            return subprocess.Popen(
                [shutil.which(program, path=SEARCH_PATH) or program, *options],
                env=self.environment(node) | (env or {}),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, daemon: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
        """Until `ready`; raises ClusterError with all logs if the daemon died or is late."""
        deadline = time.monotonic() + 60
        while not ready():
            if daemon.poll() is not None or time.monotonic() > deadline:
                logs = [log.read_text(errors="replace") for log in self.root.glob("log/*.log")]
                raise ClusterError(f"{daemon.args!r} is not ready:\n" + "\n".join(logs))
            time.sleep(0.05)


def obstacle() -> str | None:
    """Why no cluster can start here, in one line; None when it can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=SEARCH_PATH) is None]
    if missing:
        packages = "apt-get install slurm-wlm slurmdbd munge mariadb-server"
        return f"cluster tests need {', '.join(missing)}: {packages}"
    if os.geteuid() != 0:
        return "cluster tests need root: slurmd starts tasks as other users"
    return None


def start(root: Path, owner: int | None = None) -> Cluster:
    """Start a cluster in `root`; with an owner it is stopped once that process is dead."""
    if (reason := obstacle()) is not None:
        raise ClusterError(reason)
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise ClusterError(f"{root} is not empty")
    root.chmod(0o755)
    for abandoned in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/owner"):
        if not psutil.pid_exists(int(abandoned.read_text())):
            stop(abandoned.parent)
    if owner is not None:
        (root / "owner").write_text(str(owner))
    _name_nodes(f"127.0.0.1 {' '.join(config.NODES)} {HOSTS_MARK}\n")
    try:
        Cluster(root).start(_free_ports(2 + len(config.NODES)))
    except BaseException:
        stop(root)
        raise
    return Cluster(root)


def stop(root: Path) -> None:
    """Kill all that the cluster runs, and remove its folder."""
    while left := Cluster(root).processes():
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=5)
    shutil.rmtree(root)
    if not list(root.parent.glob(f"{PREFIX}*/slurm.conf")):
        _name_nodes("")


def _name_nodes(line: str) -> None:
    """Let /etc/hosts have this line, by which ranks find each other; it may be a bind mount."""
    lines = HOSTS.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = "".join(one for one in lines if not one.rstrip().endswith(HOSTS_MARK))
    HOSTS.write_text(f"{kept.rstrip()}\n{line}", encoding="utf-8")


def accepts(address: Path | tuple[str, int]) -> bool:
    """Whether somebody listens at a socket or port."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        return client.connect_ex(str(address) if isinstance(address, Path) else address) == 0


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, between those that tests lease and those that ranks try."""
    tried = random.SystemRandom().sample(range(18_000, 20_000), 500)
    return list(islice((port for port in tried if not accepts(("127.0.0.1", port))), count))
