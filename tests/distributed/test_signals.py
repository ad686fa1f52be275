"""Signals in another process: the first is remembered, and a stuck rank ends after TERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import os, sys, threading, time
from gnnhpc.distributed.signals import Signals

def on_timeout(name):
    print("deadline", name, flush=True)
    os._exit(7)

signals = Signals(on_timeout, grace_s=float(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    if line == "asked\\n":
        while not signals.stop_requested():
            time.sleep(0.01)
        print(signals.received, flush=True)
    if line == "stuck\\n":
        # As in a collective: the main thread runs no Python.
        lock = threading.Lock(); lock.acquire(); lock.acquire()
    if line == "close\\n":
        signals.close()
        print("closed", flush=True)
"""


class Program(subprocess.Popen[str]):
    """The program above, spoken to line by line."""

    def __init__(self, grace_s: float) -> None:
        command, pipe = [sys.executable, "-c", PROGRAM, str(grace_s)], subprocess.PIPE
        super().__init__(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        assert self.read() == "ready"

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)

    def read(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def write(self, line: str) -> None:
        assert self.stdin is not None
        self.stdin.write(line + "\n")

    def answer(self, line: str) -> str:
        self.write(line)
        return self.read()


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_is_remembered_and_ends_nothing(name: str) -> None:
    with Program(60.0) as program:
        program.send_signal(signal.Signals[name])
        assert program.answer("asked") == name
        program.send_signal(signal.SIGINT)
        assert program.answer("asked") == name, "the first one counts"
        assert program.answer("close") == "closed"
        # Signals do what they always did.
        program.send_signal(signal.SIGTERM)
        assert program.wait() == -signal.SIGTERM


def test_a_warning_has_no_deadline_and_a_stop_after_it_has_one() -> None:
    """The time limit that it warns of is minutes away."""
    with Program(0.05) as program:
        program.send_signal(signal.SIGUSR2)
        for _ in range(2):
            assert program.answer("asked") == "SIGUSR2"
        program.write("stuck")
        program.send_signal(signal.SIGINT)
        assert program.read() == "deadline SIGINT"
        assert program.wait() == 7
