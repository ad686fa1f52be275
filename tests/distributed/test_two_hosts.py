"""Ranks on two hosts with addresses of their own: network namespaces, joined by a cable."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import join, leave
from tests.distributed.test_rendezvous import STEP as ONE_HOST
from tests.tools.forked import ROOT

STEP = ONE_HOST | {"SLURM_STEP_NODELIST": "host[0-1]", "SLURM_STEP_NUM_NODES": "2"}
AS_RANK = """\
#!/bin/bash
exec ip netns exec "$HOST_PREFIX$RANK" unshare --mount --uts bash -c '
    mount --bind "$0" /etc/hosts && hostname "host$RANK" && exec "$@"
' "$FILES/hosts-$RANK" "$@"
"""
"""Runs a command as a program of the rank's host."""
IPV4, IPV6 = ("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")


def meet() -> list[int]:
    """Join as a rank of a Slurm step, and sum over both."""
    environment = read_environment(STEP | {"SLURM_PROCID": os.environ["RANK"]})
    mesh = join(environment, Layout(2, 1), torch.device("cpu"))
    ranks = mesh.gather_objects(mesh.rank)
    leave(mesh)
    return ranks


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def cable(addresses: tuple[str, str]) -> Iterator[str]:
    """What the names of two network namespaces begin with that a cable joins, c0 at both ends."""
    prefix, length = f"gnnhpc-{os.getpid()}-", 64 if ":" in addresses[0] else 24
    with contextlib.ExitStack() as ends:
        for number in "01":
            ip("netns", "add", prefix + number)
            ends.callback(ip, "netns", "del", prefix + number)
            ip("-n", prefix + number, "link", "set", "lo", "up")
        other = ("type", "veth", "peer", "name", "c0", "netns", prefix + "1")
        ip("link", "add", "c0", "netns", prefix + "0", *other)
        for number, address in zip("01", addresses, strict=True):
            no_waiting = ("nodad",) if ":" in address else ()
            own = (f"{address}/{length}", "dev", "c0", *no_waiting)
            ip("-n", prefix + number, "addr", "add", *own)
            ip("-n", prefix + number, "link", "set", "c0", "up")
        yield prefix


@pytest.fixture(scope="module", autouse=True)
def hosts_can_be_made() -> None:
    if not os.geteuid() and all(map(shutil.which, ("ip", "unshare"))):
        with contextlib.suppress(subprocess.CalledProcessError), cable(IPV4):
            return
    pytest.skip("needs root, ip and network namespaces")


@pytest.mark.slow
@pytest.mark.distributed
# As on Debian, a host knows its own name as a loopback address.
@pytest.mark.parametrize(
    ("addresses", "first_own"), [(IPV6, IPV6[0]), (IPV4, "127.0.1.1")], ids=["IPv6", "loopback"]
)
def test_ranks_of_two_hosts_meet(
    tmp_path: Path, addresses: tuple[str, str], first_own: str
) -> None:
    (tmp_path / "as-rank").write_text(AS_RANK)
    for number, first in enumerate((first_own, addresses[0])):
        (tmp_path / f"hosts-{number}").write_text(f"{first} host0\n{addresses[1]} host1\n")
    with cable(addresses) as prefix:
        program = f"from {__name__} import meet; print(meet())"
        command = ["timeout", "120", "bash", tmp_path / "as-rank", sys.executable, "-c", program]
        env = {"HOST_PREFIX": prefix, "FILES": str(tmp_path), "GLOO_SOCKET_IFNAME": "c0"}
        ranks = [
            subprocess.Popen(
                command, cwd=ROOT, env=os.environ | env | {"RANK": rank}, stdout=subprocess.PIPE
            )
            for rank in "01"
        ]
        assert [rank.communicate()[0] for rank in ranks] == [b"[0, 1]\n"] * 2
