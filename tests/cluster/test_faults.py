"""Faults planted on real ranks under the real Slurm: the cell ends, and says why."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.distributed.rendezvous import candidate_ports
from gnnhpc.distributed.secret import read_secret
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result, read_lines
from tests.cluster import processes, slurm
from tests.cluster.processes import Process
from tests.cluster.runs import ROOT, TINY_GAT, Run, User, planted, steps, wait_for
from tests.tools.ranks import lease_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LONG = TINY_GAT | {"layouts": ["pp2"], "microbatches": [2], "train_steps": 100_000}
SHORT = LONG | {"train_steps": 3}


def rank_process(run: Run, rank: int, number: int = 1) -> Process:
    """The process of a rank of the first cell, by what its records say."""
    header = read_lines(run.attempt(run.cells[0], number).records(rank))[0]
    process = Process.of(header["pid"])
    assert process is not None
    return process


def ended(run: Run, ranks: list[Process], number: int = 1) -> Result:
    """The result of the first cell, once no rank is left; its records outlived the fault."""
    cell = run.cells[0]
    result = run.result(cell, number)
    assert processes.wait_for_end(ranks, 30)
    assert result.status == "failed"
    assert result.failure is not None
    return result


def test_a_killed_rank_ends_the_cell_and_only_that_cell(user: User) -> None:
    run = user.submit([LONG, SHORT], name="killed", site={"max_parallel": 1})
    first, second = run.cells
    attempt = run.wait_for_step(first, 5)
    known = max(line["step"] for line in steps(attempt, 0))
    ranks = [rank_process(run, rank) for rank in (0, 1)]
    ranks[1].send(signal.SIGKILL)
    result = ended(run, ranks)
    assert result.failure is not None
    assert (result.failure.rank, result.failure.host) == (1, result.provenance["hosts"][1])
    assert result.failure.step is not None
    assert result.failure.step >= known
    assert [line["step"] for line in steps(attempt, 0)][: known + 1] == list(range(known + 1))
    assert run.result(second).status == "done"
    run.wait_until_idle()
    state = run.status()[first.id]
    assert state["state"] == "failed"
    assert "killed" in state["detail"]
    assert "rank 1" in state["detail"]


def test_an_exception_reaches_its_ranks_log_and_the_status(user: User) -> None:
    run = user.submit([LONG], name="raises", site=planted("raise", 1, 4))
    cell = run.cells[0]
    result = run.result(cell)
    assert result.failure is not None
    assert (result.status, result.failure.rank, result.failure.step) == ("failed", 1, 4)
    assert result.failure.error == "ValueError: planted in a test"
    attempt = run.attempt(cell)
    assert "Traceback" in attempt.log(1).read_text()
    assert [line["step"] for line in steps(attempt, 1)] == [0, 1, 2, 3, 4]
    run.wait_until_idle()
    assert "rank 1" in run.status()[cell.id]["detail"]
    assert "planted in a test" in user.jobs("logs", run.paths.root, cell.id).stdout


def test_a_loss_that_is_no_number_fails_the_cell(user: User) -> None:
    grid = LONG | {"optimizer": {"name": "sgd", "lr": 1e30}}
    run = user.submit([grid], name="nan")
    result = run.result(run.cells[0])
    assert result.status == "failed"
    assert result.failure is not None
    assert "loss of step" in result.failure.error
    assert result.failure.step is not None


def test_a_frozen_rank_is_found_and_named(user: User) -> None:
    run = user.submit([LONG], name="frozen", site={"setup": ["export GNNHPC_HANG_S=4"]})
    run.wait_for_step(run.cells[0], 3)
    ranks = [rank_process(run, rank) for rank in (0, 1)]
    ranks[1].send(signal.SIGSTOP)
    result = ended(run, ranks)
    assert result.failure is not None
    assert result.failure.rank == 1
    assert "frozen" in result.failure.error


def test_a_rank_over_its_memory_ends_the_cell(user: User) -> None:
    site = planted("hog", 1, 2) | {"mem": "1500M"}
    run = user.submit([LONG], name="memory", site=site)
    cell = run.cells[0]
    attempt = run.wait_for_step(cell, 2)
    # Slurm kills every rank at once, so nobody is left to write a result.
    run.wait_until_idle()
    state = run.status()[cell.id]
    assert state["state"] in ("failed", "lost", "out of memory")
    assert state["detail"]
    assert steps(attempt, 1)[2]["step"] == 2
    words = "".join(file.read_text() for file in run.paths.logs.glob("*.log"))
    assert "exceeded memory limit" in words
    user.jobs("rerun", run.paths.root, "--failed", *user.site({}))
    run.wait_for_step(cell, 2, number=2)


def test_a_master_address_that_does_not_resolve_is_named_at_once(user: User) -> None:
    setup = ["export MASTER_ADDR=no-such-host.invalid"]
    run = user.submit([SHORT], name="unresolved", site={"setup": setup})
    result = run.result(run.cells[0])
    assert result.failure is not None
    assert "no-such-host.invalid" in result.failure.error
    assert "resolve" in result.failure.error


def test_nodes_whose_names_do_not_resolve_still_find_each_other(user: User) -> None:
    run = user.submit([SHORT], name="nameless", site={"partition": "unresolved"})
    result = run.result(run.cells[0])
    assert result.status == "done"
    assert sorted(result.provenance["hosts"]) == ["nowhere1", "nowhere2"]


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    """Listens at `port`, unless another program already does, which is a stranger as well."""
    with contextlib.ExitStack() as opened:
        try:
            opened.enter_context(socket.create_server(("", port)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        yield


def test_ports_taken_by_strangers_are_passed_over(user: User) -> None:
    user.cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    with contextlib.ExitStack() as strangers:
        try:
            run = user.submit([SHORT], name="ports")
            secret = read_secret(run.paths.secret)
            assert secret is not None
            for port in candidate_ports(secret, f"slurm-{run.job('gat-pp2')}.0.0")[:3]:
                strangers.enter_context(socket.create_server(("", port)))
        finally:
            user.cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
        result = run.result(run.cells[0])
        assert result.status == "done"
        assert result.provenance["slurm"]["SLURM_JOB_ID"] == run.job("gat-pp2")


def test_a_port_asked_for_and_taken_is_named(user: User) -> None:
    with lease_port() as port, socket.create_server(("", port)):
        setup = [f"export MASTER_PORT={port}"]
        run = user.submit([SHORT], name="port", site={"setup": setup})
        result = run.result(run.cells[0])
    assert result.status == "failed"
    assert result.failure is not None
    assert str(port) in result.failure.error


def test_a_missing_network_interface_is_named(user: User) -> None:
    run = user.submit([SHORT], name="interface", site={"interface": "nosuch0"})
    result = run.result(run.cells[0])
    assert result.status == "failed"
    assert result.failure is not None
    assert "nosuch0" in result.failure.error


def python_with_other_code(user: User, *packages: str) -> str:
    """An interpreter for a site file that finds another version of `packages` on rank 1."""
    other = user.home / "other code"
    for package in packages:
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pyc*"))
    with (other / "gnnhpc" / "train" / "loop.py").open("a") as stream:
        stream.write("\n# Another version.\n")
    wrapper = user.home / "python"
    wrapper.write_text(
        "#!/bin/bash\n"
        f'[ "$SLURM_PROCID" = 1 ] && export PYTHONPATH={shlex.quote(str(other))}:"$PYTHONPATH"\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    wrapper.chmod(0o755)
    return shlex.quote(str(wrapper))


def test_a_rank_that_finds_a_gnnhpc_apart_from_jobs_is_refused(user: User) -> None:
    python = python_with_other_code(user, "gnnhpc")
    run = user.submit([SHORT], name="mixed", site={"python": python})
    run.wait_until_idle()
    assert "error: python path: found jobs in " in run.logs()
    assert [cell["state"] for cell in run.status().values()] != ["done"]


def test_ranks_with_other_code_are_refused(user: User) -> None:
    python = python_with_other_code(user, "gnnhpc", "jobs", "analysis")
    run = user.submit([SHORT], "--live", name="versions", site={"python": python})
    result = run.result(run.cells[0])
    assert result.status == "failed"
    assert result.failure is not None
    assert "rank 1" in result.failure.error
    assert "code" in result.failure.error


def test_a_rank_that_does_not_run_the_code_of_the_run_is_refused(user: User) -> None:
    python = python_with_other_code(user, "gnnhpc", "jobs", "analysis")
    run = user.submit([SHORT], name="apart", site={"python": python})
    run.wait_until_idle()
    other = user.home / "other code"
    assert f"error: {run.paths.root}: code: found {other}, and the run keeps its own" in run.logs()
    assert [cell["state"] for cell in run.status().values()] != ["done"]


@pytest.fixture
def small_disk(user: User) -> Any:
    """The folder of runs on a disk of its own, a very small one."""
    user.runs.mkdir()
    user.cluster.run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", user.runs)
    yield user.runs
    user.cluster.run("umount", "--lazy", user.runs)


def test_a_full_disk_fails_the_cell_and_loses_no_step(user: User, small_disk: Path) -> None:
    run = user.submit([LONG], name="full")
    cell = run.cells[0]
    attempt = run.wait_for_step(cell, 5)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    run.wait_until_idle()
    for rank in (0, 1):
        lines = [line["step"] for line in steps(attempt, rank)]
        assert lines == list(range(len(lines)))
        assert len(lines) > 5
    wait_for(lambda: run.status()[cell.id]["state"] in ("failed", "lost"), "the end", 30)
    assert run.status()[cell.id]["detail"]


def test_a_read_only_disk_is_named(user: User, small_disk: Path) -> None:
    user.cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        run = user.submit([SHORT], name="read-only")
        user.cluster.run("mount", "-o", "remount,ro", small_disk)
    finally:
        user.cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    run.wait_until_idle()
    cell = run.cells[0]
    wait_for(lambda: run.status()[cell.id]["state"] == "failed", "Slurm's word on the job", 30)
    assert run.status()[cell.id]["detail"]
    assert not run.paths.cell(cell.id).attempts()


def test_two_submits_of_one_name_at_once_make_one_run(user: User) -> None:
    file = user.home / "spec.yaml"
    file.write_text(f"name: twice\ngrids: [{SHORT}]\n".replace("'", ""))
    command = [sys.executable, "-m", "jobs", "submit", str(file), "--runs", str(user.runs)]
    racers = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=user.cluster.environment() | {"GNNHPC_CACHE": str(user.home)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(3)
    ]
    ends = [(racer.communicate()[1], racer.returncode) for racer in racers]
    assert sorted(status for _, status in ends) == [0, 2, 2]
    assert all("a run of this name" in words for words, status in ends if status == 2)
    run = Run(user, RunPaths(user.runs / "twice"))
    assert run.result(run.cells[0]).status == "done"
    run.wait_until_idle()
    assert len(run.paths.cell(run.cells[0].id).attempts()) == 1


def test_no_process_of_any_cell_is_left(user: User) -> None:
    left = slurm.all_processes(user.cluster.root)
    names = {Path(f"/proc/{p.pid}/comm").read_text().strip() for p in left if p.alive}
    assert names <= {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "slurmscriptd"}
    assert os.getpid() not in {process.pid for process in left}
