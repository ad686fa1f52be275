"""Ranks find the store of their job, and a port or host that does not do is named."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed import rendezvous
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import connect, derived_port, join, leave, named_interfaces
from tests.tools.forked import spawn

STEP = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "127.0.0.1",
    "SLURM_CPUS_PER_TASK": "1",
}


def port_of(step: dict[str, str]) -> int:
    return derived_port(read_environment(step | {"SLURM_PROCID": "0"}).job_key)


@pytest.fixture
def job() -> dict[str, str]:
    """A step of a job of its own, whose port is free."""
    while True:
        step = STEP | {"SLURM_JOB_ID": secrets.token_hex(6)}
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port_of(step)))
            return step


def meet(step: dict[str, str]) -> list[str]:
    """What ranks 1 and 0, which comes last, read of what the other has stored."""

    def one(rank: int) -> tuple[Any, str]:
        store = connect(read_environment(step | {"SLURM_PROCID": str(rank)}))
        store.set(f"name/{rank}", f"rank {rank}")
        return store, store.get(f"name/{1 - rank}").decode()

    with ThreadPoolExecutor(2) as pool:
        # Rank 0 serves its store until both have read it.
        found = list(pool.map(one, (1, 0)))
    return [name for _, name in found]


def test_ranks_meet_although_rank_0_comes_last(job: dict[str, str]) -> None:
    assert meet(job) == ["rank 0", "rank 1"]
    assert 20_000 <= port_of(job) < 32_000, "below outgoing connections"
    assert port_of(job) != port_of(job | {"SLURM_RESTART_COUNT": "1"})


def test_a_rank_0_that_never_comes_is_named(
    job: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "RENDEZVOUS_S", 0.3)
    with pytest.raises(GnnhpcError, match=rf"rendezvous at 127\.0\.0\.1, port {port_of(job)}: "):
        connect(read_environment(job | {"SLURM_PROCID": "1"}))


def test_a_port_that_is_taken_is_named(job: dict[str, str]) -> None:
    """Whether ranks derive it, or a site or torchrun sets one."""
    port = port_of(job)
    one_set = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        for env in (job, job | one_set):
            with pytest.raises(GnnhpcError, match=f"port {port}: .*; MASTER_PORT sets another"):
                connect(read_environment(env | {"SLURM_PROCID": "0"}))


def test_a_first_node_without_an_address_is_named_at_once(job: dict[str, str]) -> None:
    named = job | {"MASTER_ADDR": "no-such-host.invalid", "SLURM_PROCID": "1"}
    with pytest.raises(InputError, match=r"MASTER_ADDR: found 'no-such-host\.invalid', which does"):
        connect(read_environment(named))


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert named_interfaces() == ["lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,ib7")
    with pytest.raises(InputError, match=r"GLOO_SOCKET_IFNAME: found 'ib7'; allowed: .*lo"):
        named_interfaces()


def groups_of_a_rank(layout: str) -> tuple[int, list[float], float]:
    """Threads that serve sockets, sums over each group of the mesh, what came over a link."""
    mesh = join(read_environment(), Layout.parse(layout), torch.device("cpu"))
    sums = []
    for group in (mesh.pipeline, mesh.replicas, mesh.control):
        number = torch.tensor(float(mesh.rank + 1))
        dist.all_reduce(number, group=group)
        sums.append(number.item())
    came = torch.tensor(float(mesh.rank))
    if mesh.is_first:
        dist.send(came, dst=mesh.rank + 1, group=mesh.link("forward", mesh.rank + 1))
    else:
        dist.recv(came, src=mesh.rank - 1, group=mesh.link("forward", mesh.rank - 1))
    names = Counter(each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm"))
    leave(mesh)
    return names["gloo_tcp_loop"], sums, came.item()


@pytest.mark.distributed
def test_four_ranks_join_and_one_thread_serves_the_sockets_of_all_their_groups() -> None:
    ranks = spawn(groups_of_a_rank, 4, "dp2-pp2", env={"GLOO_SOCKET_IFNAME": "lo"})
    # Earlier releases of torch do not name the threads of gloo.
    if Version(torch.__version__) >= Version("2.13"):
        assert [threads for threads, _, _ in ranks] == [1] * 4
    # Ranks 0 and 1 are a pipeline, 0 and 2 are replicas.
    assert [sums for _, sums, _ in ranks] == [
        [3.0, 4.0, 10.0],
        [3.0, 6.0, 10.0],
        [7.0, 4.0, 10.0],
        [7.0, 6.0, 10.0],
    ]
    assert [came for _, _, came in ranks] == [0.0, 0.0, 2.0, 2.0]
