"""Ranks on two hosts with addresses of their own: network namespaces, joined by a cable."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import RunPaths
from tests.distributed.listening import has_ipv6
from tests.distributed.test_store import EVERYWHERE, meet
from tests.tools.ranks import run_ranks

STEP = {"SLURM_STEP_NODELIST": "host[0-1]", "SLURM_STEP_NUM_NODES": "2"}
AS_RANK = """\
#!/bin/bash
exec ip netns exec "$HOST_PREFIX$RANK" unshare --mount --uts bash -c '
    mount --bind "$0" /etc/hosts && hostname "host$RANK" && exec "$@"
' "$FILES/hosts-$RANK" "$@"
"""
"""Runs a command as a program of the rank's host."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def cable(addresses: tuple[str, str]) -> Iterator[str]:
    """What the names of two network namespaces begin with that a cable joins, c0 at both ends."""
    prefix = f"gnnhpc-{os.getpid()}-"
    with contextlib.ExitStack() as ends:
        for number in "01":
            ip("netns", "add", prefix + number)
            ends.callback(ip, "netns", "del", prefix + number)
            ip("-n", prefix + number, "link", "set", "lo", "up")
        other = ("type", "veth", "peer", "name", "c0", "netns", prefix + "1")
        ip("link", "add", "c0", "netns", prefix + "0", *other)
        for number, address in zip("01", addresses, strict=True):
            no_waiting = ("nodad",) if ":" in address else ()
            ip("-n", prefix + number, "addr", "add", address, "dev", "c0", *no_waiting)
            ip("-n", prefix + number, "link", "set", "c0", "up")
        yield prefix


def met(
    root: Path, addresses: tuple[str, str], hosts: tuple[str, str], **env: str
) -> list[set[str]]:
    """Where both ranks listened, once they have met; `hosts` are their /etc/hosts."""
    script = root / "as-rank"
    script.write_text(AS_RANK)
    for number, text in enumerate(hosts):
        (root / f"hosts-{number}").write_text(text)
    (root / "run").mkdir()
    call = (meet.__module__, meet.__qualname__, (str(root / "run"), STEP))
    (root / "call").write_bytes(pickle.dumps(call))
    with cable(addresses) as prefix:
        command = ["bash", script, sys.executable, "-m", "tests.tools.ranks", root]
        run_ranks(command, 2, env={"HOST_PREFIX": prefix, "FILES": str(root), **env})
    found = [pickle.loads((root / str(rank)).read_bytes()) for rank in (0, 1)]
    assert [told for told, _ in found] == [[10.0, 11.0]] * 2
    assert RunPaths(root / "run").secret.is_file()
    return [listened for _, listened in found]


def can_make_hosts() -> bool:
    """Whether this is root, on a machine that has network namespaces."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    try:
        with cable(("10.77.0.1/24", "10.77.0.2/24")):
            return True
    except subprocess.CalledProcessError:
        return False


@pytest.fixture(scope="module", autouse=True)
def hosts_can_be_made() -> None:
    if not can_make_hosts():
        pytest.skip("needs root, ip and network namespaces")


pytestmark = pytest.mark.distributed
IPV4, IPV6 = ("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")


def names(of: tuple[str, str]) -> str:
    return f"{of[0]} host0\n{of[1]} host1\n"


@pytest.mark.quick("IPv4")
@pytest.mark.parametrize(
    "addresses",
    [IPV4, pytest.param(IPV6, marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6"))],
    ids=["IPv4", "IPv6"],
)
def test_ranks_meet_at_the_one_address_of_each_host(
    tmp_path: Path, addresses: tuple[str, str]
) -> None:
    length = 64 if ":" in addresses[0] else 24
    with_length = (f"{addresses[0]}/{length}", f"{addresses[1]}/{length}")
    listened = met(tmp_path, with_length, (names(addresses), names(addresses)))
    assert listened == [{addresses[0]}, {addresses[1]}]


@pytest.mark.slow
def test_a_host_that_knows_its_own_name_as_a_loopback_address(tmp_path: Path) -> None:
    """As Debian's do. Others come to rank 0 all the same, and its store is on the interface."""
    with_length = (f"{IPV4[0]}/24", f"{IPV4[1]}/24")
    hosts = (names(("127.0.1.1", IPV4[1])), names((IPV4[0], "127.0.1.1")))
    listened = met(tmp_path, with_length, hosts, GLOO_SOCKET_IFNAME="c0")
    assert listened[0] & EVERYWHERE
    assert IPV4[0] in listened[0]
