"""The harness itself: a cluster that starts, runs arrays, accounts for them, and goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.cluster import config, hosts, network, processes, slurm
from tests.cluster.processes import Process
from tests.cluster.slurm import Cluster

needs_slurm = pytest.mark.cluster


@needs_slurm
def test_a_step_runs_on_four_nodes(cluster: Cluster) -> None:
    names = cluster.run("srun", "-N4", "printenv", "SLURMD_NODENAME").stdout.split()
    assert sorted(names) == ["n1", "n2", "n3", "n4"]


@needs_slurm
def test_node_names_resolve_but_for_those_that_should_not(cluster: Cluster) -> None:
    assert all(hosts.resolves(name) for name in config.NODES)
    assert not any(hosts.resolves(name) for name in config.UNRESOLVED)
    where = cluster.run("srun", "-p", "unresolved", "-N2", "printenv", "SLURMD_NODENAME")
    assert sorted(where.stdout.split()) == sorted(config.UNRESOLVED)


@needs_slurm
@pytest.mark.nightly
def test_a_second_cluster_whose_owner_was_killed_is_cleared_away(cluster: Cluster) -> None:
    root = Path(tempfile.mkdtemp(prefix=slurm.PREFIX))
    code = (
        "import os, sys, time; from pathlib import Path; from tests.cluster import network, slurm\n"
        "networked = (network.obstacle() or network.refusal()) is None\n"
        "cluster = slurm.start(Path(sys.argv[1]), owner=os.getpid(), networked=networked)\n"
        "cluster.run('sbatch', '-N2', '-o', '/dev/null', '--wrap', 'srun sleep 600')\n"
        "print('started', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        second = Cluster(root)
        assert second.run("squeue", "-h", "-o", "%j").stdout.split() == ["wrap"]
        wait_until_running(second)
        assert bool(network.left(root)) == (network.read(root) is not None)
        owner.kill()
    family = slurm.all_processes(root)
    assert len(family) > 4 + len(config.NODES)
    slurm.stop_abandoned()
    assert not [process for process in family if process.alive]
    assert not root.exists()
    assert network.left(root) == []
    assert cluster.run("sinfo", "-h", "-p", "main", "-o", "%D").stdout.strip() == "4"
    assert hosts.resolves("n1")


def wait_until_running(cluster: Cluster) -> None:
    deadline = time.monotonic() + 30
    while cluster.run("squeue", "-h", "-o", "%T").stdout.split() != ["RUNNING"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_hosts_line_comes_and_goes_without_touching_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost")
    hosts.add(("n1", "n2"), file)
    hosts.add(("n1", "n2"), file)
    assert file.read_text() == f"127.0.0.1 localhost\n127.0.0.1 n1 n2 {hosts.MARK}\n"
    hosts.remove(file)
    assert file.read_text() == "127.0.0.1 localhost\n"


def test_a_reused_pid_is_not_taken_for_the_process_that_had_it() -> None:
    here = Process.of(os.getpid())
    assert here is not None
    assert here.alive
    assert Process.from_line(here.to_line()) == here
    assert not Process(here.pid, here.started - 1).alive


def test_a_process_that_will_not_end_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import signal, time\n"
         "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        process = Process.of(child.pid)
        assert process is not None
        processes.stop([process], patience_s=0.2)
        assert not process.alive


def test_missing_programs_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SEARCH_PATH", "/nonexistent")
    assert shutil.which("slurmctld", path=slurm.SEARCH_PATH) is None
    reason = slurm.obstacle()
    assert reason is not None
    assert "slurmctld" in reason
    assert slurm.INSTALL in reason
