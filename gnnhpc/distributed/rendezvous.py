"""How ranks find rank 0's store when the launcher has not set its port.

Rank 0 listens at the first free port of a short sequence that all ranks derive from the run's
secret and the job's key, which nobody else can do. If a port is in use, by another cell on the
node or by any other program, the ranks go on to the next port of the sequence.

Both sides prove that they hold the secret before they are believed: rank 0 sends a number that it
has just drawn, the other rank its own and a proof of both, and rank 0 the store's address and port
with a proof of all of it. The port of the conversation is part of each proof, so that nobody can
pass on what others say.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic_core import from_json

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.addresses import listen
from gnnhpc.distributed.secret import Secret

CANDIDATES = 16
_FIRST, _LAST = 20_000, 32_000
_MAX_LINE = 4096
"""Bytes read of a line, which another program may have sent."""
_PATIENCE_S = 2.0
"""How long one conversation may take, on either side."""
_AT_ONCE = 32
"""Conversations of rank 0 at once, so that a silent stranger holds up nobody."""


@dataclass(frozen=True)
class StorePlace:
    """Where rank 0's store listens; no address where it listens at all of its host's."""

    address: str | None
    port: int


def candidate_ports(secret: Secret, job_key: str) -> list[int]:
    """The ports to try, in order: the same on every rank, below the ephemeral range."""
    digest = bytes.fromhex(secret.proof("ports", job_key))
    numbers = [int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * CANDIDATES, 2)]
    return [_FIRST + number % (_LAST - _FIRST) for number in numbers]


class StorePortServer:
    """Rank 0's side: tells each rank that has the secret where the store is, and nobody else.

    `addresses` are those to listen at; None means all of this host's.
    """

    def __init__(
        self, secret: Secret, job_key: str, store: StorePlace, addresses: Sequence[str | None]
    ) -> None:
        self._secret = secret
        self._key = job_key
        self._store = json.dumps([store.address, store.port])
        self._closed = threading.Event()
        self.port, self._sockets = self._listen(addresses)
        self._talks = ThreadPoolExecutor(_AT_ONCE, "store-port-server")
        self._threads = [
            threading.Thread(target=self._serve, args=(one,), daemon=True) for one in self._sockets
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, addresses: Sequence[str | None]) -> tuple[int, list[socket.socket]]:
        """The first port that is free at all addresses."""
        ports = candidate_ports(self._secret, self._key)
        for port in ports:
            with contextlib.ExitStack() as opened:
                try:
                    found = [opened.enter_context(listen(each, port)) for each in addresses]
                except OSError:
                    continue
                opened.pop_all()
                return port, found
        raise GnnhpcError(f"rendezvous: no free port among {ports}; set MASTER_PORT to one")

    def _serve(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                # Closed, or too many files are open for the moment.
                self._closed.wait(0.1)
            else:
                self._talks.submit(self._talk, connection, time.monotonic() + _PATIENCE_S)

    def _talk(self, connection: socket.socket, until: float) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            mine = secrets.token_hex(16)
            _send(connection, until, mine)
            theirs, proof = _receive(connection, until, 2)
            said = (self._key, self.port, mine, theirs)
            if self._secret.proves(proof, "asks", *said):
                answer = self._secret.proof("tells", *said, self._store)
                _send(connection, until, self._store, answer)

    def close(self) -> None:
        self._closed.set()
        for one in self._sockets:
            # Closing does not interrupt an accept in another thread; a shutdown does.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()
        self._talks.shutdown()


def find_store(
    addresses: Sequence[str], secret: Secret, job_key: str, timeout_s: float
) -> StorePlace:
    """The other ranks' side: where the store is, asked for at rank 0's addresses.

    Raises GnnhpcError if no server that has the secret answers in time.
    """
    deadline = time.monotonic() + timeout_s
    ports = candidate_ports(secret, job_key)
    while time.monotonic() < deadline:
        for port in ports:
            for address in addresses:
                found = _ask(address, port, secret, job_key)
                if found is not None:
                    return found
        time.sleep(0.05)
    raise GnnhpcError(
        f"rendezvous: rank 0 did not answer at {', '.join(addresses)} within {timeout_s:.0f} s "
        f"(job {job_key}, ports {ports[0]}, {ports[1]}, ...)"
    )


def _ask(address: str, port: int, secret: Secret, job_key: str) -> StorePlace | None:
    """What the server at this port says, if it has the secret and tells this rank where to go."""
    until = time.monotonic() + _PATIENCE_S
    try:
        with socket.create_connection((address, port), timeout=_PATIENCE_S) as connection:
            (theirs,) = _receive(connection, until, 1)
            mine = secrets.token_hex(16)
            said = (job_key, port, theirs, mine)
            _send(connection, until, mine, secret.proof("asks", *said))
            store, proof = _receive(connection, until, 2)
    except (OSError, ValueError):
        return None
    if not secret.proves(proof, "tells", *said, store):
        return None
    told, number = json.loads(store)
    return StorePlace(told or address, number)


def _send(connection: socket.socket, until: float, *texts: str) -> None:
    connection.settimeout(_left(until))
    connection.sendall(json.dumps(texts).encode() + b"\n")


def _receive(connection: socket.socket, until: float, count: int) -> list[str]:
    """A line of so many texts, however slowly it comes; ValueError or OSError for all else."""
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(_left(until))
        part = connection.recv(_MAX_LINE - len(line))
        if not part:
            raise ValueError("the line does not end")
        line += part
    texts = from_json(line)
    if not isinstance(texts, list) or len(texts) != count:
        raise ValueError("not what was expected")
    if not all(isinstance(each, str) for each in texts):
        raise ValueError("no texts")
    return texts


def _left(until: float) -> float:
    """Seconds left of a conversation; TimeoutError, an OSError, when there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
