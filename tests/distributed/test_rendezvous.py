"""Ranks find the store of their own job, past ports in use, strangers and other jobs."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Iterator
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
from gnnhpc.distributed.rendezvous import (
    candidate_ports,
    check_interfaces,
    connect,
    join,
    leave,
)
from tests.tools.forked import spawn

STEP = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "127.0.0.1",
    "SLURM_CPUS_PER_TASK": "1",
}


@pytest.fixture
def job() -> dict[str, str]:
    """A step of a job of its own, whose first ports are free."""
    while True:
        step = STEP | {"SLURM_JOB_ID": secrets.token_hex(6)}
        if all(map(is_free, ports_of(step)[:3])):
            return step


def ports_of(step: dict[str, str]) -> list[int]:
    return candidate_ports(read_environment(step | {"SLURM_PROCID": "0"}).job_key)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def meet(step: dict[str, str], ranks: int = 2) -> list[str]:
    """What each rank reads of what the others have stored."""
    found: dict[int, str] = {}
    stores: list[Any] = []

    def one(rank: int) -> None:
        store = connect(read_environment(step | {"SLURM_PROCID": str(rank)}))
        # Rank 0 serves its store until all have read it.
        stores.append(store)
        store.set(f"name/{rank}", f"rank {rank}")
        found[rank] = store.get(f"name/{(rank + 1) % ranks}").decode()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in reversed(range(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in sorted(found)]


@contextlib.contextmanager
def stranger(port: int) -> Iterator[None]:
    """Another program's port, which answers whoever connects."""
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = taken.accept()
                    with connection:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield
        taken.shutdown(socket.SHUT_RDWR)


def test_ranks_meet_although_rank_0_comes_last(job: dict[str, str]) -> None:
    assert meet(job) == ["rank 1", "rank 0"]
    assert all(20_000 <= port < 32_000 for port in ports_of(job)), "below outgoing connections"
    assert ports_of(job) != ports_of(job | {"SLURM_RESTART_COUNT": "1"})


def test_the_port_of_another_program_is_passed_over(job: dict[str, str]) -> None:
    with stranger(ports_of(job)[0]):
        assert meet(job) == ["rank 1", "rank 0"]


def test_another_jobs_store_at_the_same_port_is_passed_over(job: dict[str, str]) -> None:
    """Jobs that share a node may derive the same port."""
    other: Any = dist.TCPStore("localhost", ports_of(job)[0], None, True, wait_for_workers=False)
    other.set("gnnhpc/another job", "")
    assert meet(job) == ["rank 1", "rank 0"]


def test_a_rank_0_that_never_comes_is_named(
    job: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "RENDEZVOUS_S", 0.3)
    with pytest.raises(GnnhpcError, match=r"rank 0 did not answer at 127\.0\.0\.1 within 0 s"):
        connect(read_environment(job | {"SLURM_PROCID": "1"}))


def test_a_launchers_port_is_used_and_named_where_it_is_taken(job: dict[str, str]) -> None:
    port = ports_of(job)[0]
    at_port = job | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    assert meet(at_port) == ["rank 1", "rank 0"]
    taken = ports_of(job)[1]
    with (
        stranger(taken),
        pytest.raises(GnnhpcError, match=f"127.0.0.1, MASTER_PORT {taken}: "),
    ):
        connect(read_environment(at_port | {"MASTER_PORT": str(taken), "SLURM_PROCID": "0"}))


def test_a_first_node_without_an_address_is_named_at_once(job: dict[str, str]) -> None:
    named = job | {"MASTER_ADDR": "no-such-host.invalid", "SLURM_PROCID": "1"}
    with pytest.raises(InputError, match=r"MASTER_ADDR: found 'no-such-host\.invalid', which does"):
        connect(read_environment(named))


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    check_interfaces()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,ib7")
    with pytest.raises(InputError, match=r"GLOO_SOCKET_IFNAME: found 'ib7'; allowed: .*lo"):
        check_interfaces()


def groups_of_a_rank(layout: str) -> tuple[int, list[float], float]:
    """Threads that serve sockets, sums over each group of the mesh, what came over a link."""
    mesh = join(read_environment(), Layout.parse(layout), torch.device("cpu"))
    sums = []
    for group in (mesh.forward, mesh.backward, mesh.replicas, mesh.control):
        number = torch.tensor(float(mesh.rank + 1))
        dist.all_reduce(number, group=group)
        sums.append(number.item())
    came = torch.tensor(float(mesh.rank))
    if mesh.is_first:
        dist.send(came, dst=mesh.rank + 1, group=mesh.link("forward", mesh.rank + 1))
    else:
        dist.recv(came, src=mesh.rank - 1, group=mesh.link("forward", mesh.rank - 1))
    names = Counter(each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm"))
    leave()
    return names["gloo_tcp_loop"], sums, came.item()


@pytest.mark.distributed
def test_four_ranks_join_and_one_thread_serves_the_sockets_of_all_their_groups() -> None:
    ranks = spawn(groups_of_a_rank, 4, "dp2-pp2", env={"GLOO_SOCKET_IFNAME": "lo"})
    # Earlier releases of torch do not name the threads of gloo.
    if Version(torch.__version__) >= Version("2.13"):
        assert [threads for threads, _, _ in ranks] == [1] * 4
    # Ranks 0 and 1 are a pipeline, 0 and 2 are replicas.
    assert [sums for _, sums, _ in ranks] == [
        [3.0, 3.0, 4.0, 10.0],
        [3.0, 3.0, 6.0, 10.0],
        [7.0, 7.0, 4.0, 10.0],
        [7.0, 7.0, 6.0, 10.0],
    ]
    assert [came for _, _, came in ranks] == [0.0, 0.0, 2.0, 2.0]
