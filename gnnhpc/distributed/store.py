"""The store that all ranks of a cell connect to first, in which they find one another."""

from __future__ import annotations

import datetime
import os
import socket
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.distributed.addresses import (
    asked_interfaces,
    interface_addresses,
    listen,
    reachable,
    resolve,
)
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.rendezvous import StorePlace, StorePortServer, find_store
from gnnhpc.distributed.secret import shared_secret

RENDEZVOUS_S = 120.0
_TIMEOUT = datetime.timedelta(seconds=RENDEZVOUS_S)


def connect(
    environment: Environment, secret_file: Path | None
) -> tuple[Any, StorePortServer | None]:
    """The store, and on rank 0 the server that says where it is, unless the launcher set a port.

    Raises InputError for a host name that does not resolve and for a secret that is not to be had,
    and GnnhpcError if rank 0 is not found in time or its port is taken.
    """
    hosts = resolve(environment.first_host)
    if environment.port is not None:
        return _at_port(environment, hosts, environment.port), None
    if secret_file is None:
        allowed = "a port: these ranks have no run folder with a secret to know each other by"
        raise InputError("environment", "MASTER_PORT", "nothing", allowed)
    first = environment.rank == 0
    secret = shared_secret(secret_file, makes=first, timeout_s=RENDEZVOUS_S)
    if not first:
        place = find_store(hosts, secret, environment.job_key, RENDEZVOUS_S)
        assert place.address is not None
        return _store(place.address, place.port, environment.world_size), None
    listens = reachable(hosts, from_other_hosts=environment.several_hosts)
    # torch's store lets in whoever connects: of several addresses it gets the site's own.
    address = next(iter(_of_site(hosts)), listens[0])
    listener = listen(address, 0)
    store = _served(listener, address or hosts[0], environment.world_size)
    told = StorePlace(address, store.port)
    return store, StorePortServer(secret, environment.job_key, told, listens)


def _of_site(hosts: list[str]) -> list[str]:
    """The addresses of the interface that the site names, of the family that the ranks use."""
    found = [each for name in asked_interfaces() for each in interface_addresses(name)]
    return [each for each in found if (":" in each) == (":" in hosts[0])]


def _at_port(environment: Environment, hosts: list[str], port: int) -> Any:
    """The store at the launcher's port, which rank 0 serves unless torchrun's agent does."""
    serves = environment.rank == 0 and "TORCHELASTIC_USE_AGENT_STORE" not in os.environ
    size = environment.world_size
    if serves:
        store = _served(_listener(environment, hosts[0], port), hosts[0], size, waits=True)
    else:
        store = _store(hosts[0], port, size, waits=True)
    return dist.PrefixStore(f"gnnhpc/{environment.job_key}", store)


def _listener(environment: Environment, host: str, port: int) -> socket.socket:
    (address,) = reachable([host], from_other_hosts=environment.several_hosts)
    try:
        return listen(address, port)
    except OSError as error:
        raise GnnhpcError(f"{host}, MASTER_PORT {port}: {error.strerror}") from None


def _served(listener: socket.socket, host: str, size: int, *, waits: bool = False) -> Any:
    """A store that is served here, at the address of a socket that listens already."""
    port = listener.getsockname()[1]
    return dist.TCPStore(
        host,
        port,
        size,
        True,
        _TIMEOUT,
        wait_for_workers=waits,
        master_listen_fd=listener.detach(),
    )


def _store(host: str, port: int, size: int, *, waits: bool = False) -> Any:
    return dist.TCPStore(host, port, size, False, _TIMEOUT, wait_for_workers=waits)
