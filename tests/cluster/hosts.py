"""A marked line in /etc/hosts, for as long as a cluster that needs it runs."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

HOSTS = Path("/etc/hosts")
MARK = "# gnnhpc tests/cluster"


def resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror:
        return False
    return True


def add(names: Iterable[str], hosts: Path = HOSTS) -> None:
    """Let the names mean this machine; written in place, as the file may be a bind mount."""
    remove(hosts)
    text = hosts.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        text += "\n"
    hosts.write_text(f"{text}127.0.0.1 {' '.join(names)} {MARK}\n", encoding="utf-8")


def remove(hosts: Path = HOSTS) -> None:
    lines = hosts.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.rstrip().endswith(MARK)]
    if kept != lines:
        hosts.write_text("".join(kept), encoding="utf-8")
