"""How ranks find the port of rank 0's store when the launcher has not set one.

Rank 0 listens at the first free port of a short sequence that all ranks derive from the job's key,
and tells every rank that sends this key the port of the store. If a port is in use, by another
cell on the node or by any other program, the ranks go on to the next port of the sequence.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
import time

from gnnhpc.core.errors import GnnhpcError

CANDIDATES = 16
_FIRST, _LAST = 20_000, 32_000
_MAX_LINE = 4096
"""Bytes read of a line, which another program may have sent."""


def candidate_ports(job_key: str) -> list[int]:
    """The ports to try, in order: the same on every rank, below the ephemeral range."""
    digest = hashlib.sha256(job_key.encode()).digest()
    numbers = [int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * CANDIDATES, 2)]
    return [_FIRST + number % (_LAST - _FIRST) for number in numbers]


class StorePortServer:
    """Rank 0's side: answers each request that has the job's key with the store's port."""

    def __init__(self, job_key: str, store_port: int) -> None:
        self._key = job_key
        self._answer = json.dumps({"key": job_key, "port": store_port}).encode() + b"\n"
        self._socket = self._listen(job_key)
        self._thread = threading.Thread(target=self._serve, name="store-port-server", daemon=True)
        self._thread.start()

    @staticmethod
    def _listen(job_key: str) -> socket.socket:
        ports = candidate_ports(job_key)
        for port in ports:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind(("", port))
                listener.listen(128)
            except OSError:
                listener.close()
            else:
                return listener
        raise GnnhpcError(f"rendezvous: no free port among {ports}; set MASTER_PORT to one")

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2.0)
                try:
                    if connection.makefile("rb").readline(_MAX_LINE).strip() == self._key.encode():
                        connection.sendall(self._answer)
                except OSError:
                    continue

    def close(self) -> None:
        # Closing does not interrupt an accept in another thread; a shutdown does.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def find_store_port(address: str, job_key: str, timeout_s: float) -> int:
    """The other ranks' side: the port of the store at `address`.

    Raises GnnhpcError if no server with this key answers in time.
    """
    deadline = time.monotonic() + timeout_s
    ports = candidate_ports(job_key)
    while time.monotonic() < deadline:
        for port in ports:
            found = _ask(address, port, job_key)
            if found is not None:
                return found
        time.sleep(0.05)
    raise GnnhpcError(
        f"rendezvous: rank 0 did not answer at {address} within {timeout_s:.0f} s "
        f"(job {job_key}, ports {ports[0]}, {ports[1]}, ...)"
    )


def _ask(address: str, port: int, job_key: str) -> int | None:
    try:
        with socket.create_connection((address, port), timeout=1.0) as connection:
            connection.settimeout(1.0)
            connection.sendall(job_key.encode() + b"\n")
            answer = json.loads(connection.makefile("rb").readline(_MAX_LINE))
        return int(answer["port"]) if answer["key"] == job_key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
