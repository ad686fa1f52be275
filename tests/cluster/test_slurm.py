"""The harness itself: a cluster that starts, binds ranks, and says what it lacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cluster import config, hosts, slurm
from tests.cluster.processes import Process
from tests.cluster.slurm import Cluster


@pytest.mark.cluster
def test_a_step_runs_on_four_nodes_and_is_bound(cluster: Cluster) -> None:
    names = cluster.run("srun", "-N4", "printenv", "SLURMD_NODENAME").stdout.split()
    assert sorted(names) == ["n1", "n2", "n3", "n4"]
    assert not any(hosts.resolves(name) for name in config.UNRESOLVED)
    shown = cluster.run("srun", "-N1", "-n2", "--cpu-bind=cores", "sh", "-c", "taskset -cp $$")
    lists = {line.rpartition(" ")[2] for line in shown.stdout.splitlines()}
    assert len(lists) == (2 if config.can_bind() else 1)


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


def test_missing_programs_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SEARCH_PATH", "/nonexistent")
    assert shutil.which("slurmctld", path=slurm.SEARCH_PATH) is None
    reason = slurm.obstacle()
    assert reason is not None
    assert slurm.INSTALL in reason
