"""Addresses of hosts and network interfaces, of either family, and sockets that listen there."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from gnnhpc.core.errors import InputError

_SIOCGIFADDR = 0x8915
"""Asks for the IPv4 address of an interface (netdevice(7))."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_BACKLOG = 1024


def resolve(name: str) -> list[str]:
    """A host name's IPv4 addresses, or its IPv6 addresses where it has no others.

    Raises InputError with the name, at once, if it has none.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            "environment",
            "MASTER_ADDR",
            f"{name!r}, which does not resolve on {socket.gethostname()}",
            "a name every node resolves (set MASTER_ADDR), or the interface of the site file",
        ) from None
    by_family = {family: [each for each in found if each[0] == family] for family in _FAMILIES}
    usable = by_family[socket.AF_INET] or by_family[socket.AF_INET6]
    return list(dict.fromkeys(str(each[4][0]) for each in usable))


def resolves(name: str) -> bool:
    """Whether a host name has an address here."""
    try:
        return bool(resolve(name))
    except InputError:
        return False


def is_loopback(address: str) -> bool:
    """Whether no other host can reach this address."""
    return ipaddress.ip_address(address).is_loopback


def asked_interfaces(env: Mapping[str, str] | None = None) -> list[str]:
    """The network interfaces that gloo is told to use, if any."""
    text = (os.environ if env is None else env).get("GLOO_SOCKET_IFNAME", "")
    return [name for name in text.split(",") if name]


def check_interface(env: Mapping[str, str] | None = None) -> None:
    """Raises InputError if a network interface is asked for that this node does not have."""
    there = [name for _, name in socket.if_nameindex()]
    for name in asked_interfaces(env):
        if name not in there:
            raise InputError("environment", "GLOO_SOCKET_IFNAME", repr(name), ", ".join(there))


def interface_addresses(name: str) -> list[str]:
    """The addresses of a network interface, IPv4 first, those of its own link alone last."""
    return [*_ipv4_of(name), *_ipv6_of(name)]


def _ipv4_of(name: str) -> list[str]:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6_of(name: str) -> list[str]:
    try:
        lines = _IPV6_ADDRESSES.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    mine = [ipaddress.IPv6Address(bytes.fromhex(row[0])) for row in rows if row[5] == name]
    mine.sort(key=lambda address: address.is_link_local)
    return [f"{each}%{name}" if each.is_link_local else str(each) for each in mine]


def listen(address: str | None, port: int) -> socket.socket:
    """A socket that listens at this address, at all of this host's for None; OSError if it cannot.

    Port 0 takes any free one.
    """
    if address is None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(
            ("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    target = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM)[0][4]
    return socket.create_server(target[:4], family=family, backlog=_BACKLOG)


def reachable(addresses: Sequence[str], *, from_other_hosts: bool) -> list[str | None]:
    """Where to listen so that all ranks come through: these addresses, or everywhere (None).

    A host may know its own name as a loopback address that other hosts cannot reach, and may be
    known by an address that is not its own.
    """
    usable = [each for each in addresses if not (from_other_hosts and is_loopback(each))]
    return [each for each in usable if _is_own(each)] or [None]


def _is_own(address: str) -> bool:
    try:
        listen(address, 0).close()
    except OSError:
        return False
    return True
