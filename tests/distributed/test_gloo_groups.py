"""Groups of gloo on real ranks: one thread serves the sockets of all, and sums still add up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.mesh import join, leave
from tests.tools.forked import spawn

SERVES_SOCKETS = "gloo_tcp_loop"
NAMES_THREADS = Version("2.13")
"""Earlier releases of torch do not name the threads of gloo."""


def threads_and_sums(layout: str) -> tuple[int, list[float], float]:
    """Threads that serve sockets, sums over each group of the mesh, what came over a link."""
    mesh = join(read_environment(), Layout.parse(layout), torch.device("cpu"))
    groups = [mesh.forward, mesh.backward, mesh.replicas, mesh.control]
    sums = []
    for group in groups:
        if group is not None:
            number = torch.tensor(float(mesh.rank + 1))
            dist.all_reduce(number, group=group)
            sums.append(number.item())
    came = torch.tensor(float(mesh.rank))
    if mesh.is_first:
        dist.send(came, dst=mesh.rank + 1, group=mesh.link("forward", mesh.rank + 1))
    else:
        dist.recv(came, src=mesh.rank - 1, group=mesh.link("forward", mesh.rank - 1))
    found = threads()[SERVES_SOCKETS]
    leave(mesh)
    return found, sums, came.item()


def threads() -> Counter[str]:
    """Of this process, by name."""
    return Counter(each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm"))


@pytest.mark.quick("lo")
@pytest.mark.distributed
@pytest.mark.parametrize("interface", ["", "lo"])
def test_one_thread_serves_the_sockets_of_all_groups(interface: str) -> None:
    env = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    ranks = spawn(threads_and_sums, 4, "dp2-pp2", env=env)
    if Version(torch.__version__) >= NAMES_THREADS:
        assert [found for found, _, _ in ranks] == [1] * 4
    # Ranks 0 and 1 are a pipeline, 0 and 2 are replicas.
    assert [sums for _, sums, _ in ranks] == [
        [3.0, 3.0, 4.0, 10.0],
        [3.0, 3.0, 6.0, 10.0],
        [7.0, 7.0, 4.0, 10.0],
        [7.0, 7.0, 6.0, 10.0],
    ]
    assert [came for _, _, came in ranks] == [0.0, 0.0, 2.0, 2.0]
