"""Names and interfaces have addresses of either family, and sockets listen at these alone."""

from __future__ import annotations

import socket

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.distributed.addresses import (
    asked_interfaces,
    check_interface,
    interface_addresses,
    is_loopback,
    listen,
    reachable,
    resolve,
    resolves,
)
from tests.distributed.listening import needs_ipv6

THERE = [name for _, name in socket.if_nameindex()]
DOCUMENTATION = "192.0.2.1"
"""No host has this address (RFC 5737)."""


def test_a_name_that_does_not_resolve_is_told_at_once() -> None:
    assert resolve("localhost")[0].startswith("127.")
    with pytest.raises(InputError, match=r"MASTER_ADDR: found 'no-such-node.invalid', which"):
        resolve("no-such-node.invalid")
    with pytest.raises(InputError, match=r"MASTER_ADDR: found '.x', which does not resolve"):
        resolve(".x")


def test_an_address_is_its_own_name() -> None:
    assert resolve("10.1.2.3") == ["10.1.2.3"]
    assert resolve("fd00::1") == ["fd00::1"]
    assert resolves("::1")
    assert not resolves("no-such-node.invalid")


def test_interfaces_that_are_asked_for() -> None:
    assert asked_interfaces({}) == asked_interfaces({"GLOO_SOCKET_IFNAME": ""}) == []
    assert asked_interfaces({"GLOO_SOCKET_IFNAME": "ib0,ib1"}) == ["ib0", "ib1"]


def test_an_interface_that_is_not_there_is_named() -> None:
    check_interface({"GLOO_SOCKET_IFNAME": "lo"})
    with pytest.raises(InputError) as refused:
        check_interface({"GLOO_SOCKET_IFNAME": "lo,ib9"})
    said = f"environment: GLOO_SOCKET_IFNAME: found 'ib9'; allowed: {', '.join(THERE)}"
    assert str(refused.value) == said


def test_the_addresses_of_an_interface_may_be_listened_at() -> None:
    found = interface_addresses("lo")
    assert found[0] == "127.0.0.1"
    assert all(is_loopback(address) for address in found)
    assert interface_addresses("ib9") == []
    for address in [address for name in THERE for address in interface_addresses(name)]:
        listen(address, 0).close()


def test_a_listener_is_reached_at_its_address_alone() -> None:
    with listen("127.0.0.2", 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.2", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.2", pytest.param("::1", marks=needs_ipv6)]
)
def test_a_listener_at_all_addresses_is_reached_by_both_families(address: str) -> None:
    with listen(None, 0) as listener:
        socket.create_connection((address, listener.getsockname()[1])).close()


@pytest.mark.parametrize("address", ["127.0.0.1", None, pytest.param("::1", marks=needs_ipv6)])
def test_two_do_not_listen_at_one_port(address: str | None) -> None:
    with listen(address, 0) as first, pytest.raises(OSError, match="in use"):
        listen(address, first.getsockname()[1])


def test_ranks_of_other_hosts_cannot_come_to_a_loopback_address() -> None:
    both = ["127.0.0.1", "127.0.0.2"]
    assert list(reachable(both, from_other_hosts=False)) == both
    assert reachable(["127.0.1.1"], from_other_hosts=True) == [None]
    assert reachable(["::1"], from_other_hosts=True) == [None]


def test_an_address_of_another_host_cannot_be_listened_at() -> None:
    assert reachable([DOCUMENTATION], from_other_hosts=True) == [None]
    assert reachable([DOCUMENTATION, "127.0.0.1"], from_other_hosts=False) == ["127.0.0.1"]
