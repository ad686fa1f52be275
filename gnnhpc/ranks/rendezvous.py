"""How the ranks of one start find each other when the launcher has not said at which port.

Rank 0 listens at the first free port of a short sequence that all ranks derive from the job, and
tells whoever knocks with the job's key where the store is. Two cells on one node, a port already
taken, or a stranger listening there lead to the next port, never to a mix-up.
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
_LONGEST = 4096
"""Bytes of a line; strangers may say anything."""


def candidate_ports(job_key: str) -> list[int]:
    """The ports to try, in order: the same on every rank, below the ephemeral range."""
    digest = hashlib.sha256(job_key.encode()).digest()
    numbers = [int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * CANDIDATES, 2)]
    return [_FIRST + number % (_LAST - _FIRST) for number in numbers]


class Doorkeeper:
    """Rank 0's side: answers each knock that has the right key with the store's port."""

    def __init__(self, job_key: str, store_port: int) -> None:
        self._key = job_key
        self._answer = json.dumps({"key": job_key, "port": store_port}).encode() + b"\n"
        self._socket = self._listen(job_key)
        self._thread = threading.Thread(target=self._serve, name="doorkeeper", daemon=True)
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
                visitor, _ = self._socket.accept()
            except OSError:
                return
            with visitor:
                visitor.settimeout(2.0)
                try:
                    if visitor.makefile("rb").readline(_LONGEST).strip() == self._key.encode():
                        visitor.sendall(self._answer)
                except OSError:
                    continue

    def close(self) -> None:
        # Closing alone does not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def knock(address: str, job_key: str, timeout_s: float) -> int:
    """Every other rank's side: the port of the store at `address`.

    Raises GnnhpcError when nobody with this key answers in time.
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
        with socket.create_connection((address, port), timeout=1.0) as door:
            door.settimeout(1.0)
            door.sendall(job_key.encode() + b"\n")
            answer = json.loads(door.makefile("rb").readline(_LONGEST))
        return int(answer["port"]) if answer["key"] == job_key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
