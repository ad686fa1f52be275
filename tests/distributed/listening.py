"""Where this process listens, as the kernel says it."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

_LISTEN = "0A"


def has_ipv6() -> bool:
    """Whether this machine has IPv6 at all."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


def listening_addresses() -> set[str]:
    """Local addresses of this process's listening TCP sockets; 0.0.0.0 and :: mean all."""
    mine = _inodes()
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == _LISTEN and fields[9] in mine:
                found.add(_address(fields[1].partition(":")[0], family))
    return found


def _inodes() -> set[str]:
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    return inodes


def _address(text: str, family: socket.AddressFamily) -> str:
    """The kernel writes words of four bytes, each in the order of the machine."""
    raw = bytes.fromhex(text)
    words = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]
    return socket.inet_ntop(family, b"".join(words))
