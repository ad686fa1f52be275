"""Signals in another process: the first is remembered, and a stuck rank ends after TERM."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

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


class Program:
    """The program above, spoken to line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.send = process.send_signal

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answer(self, line: str) -> str:
        self.write(line)
        return self.read()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def running(grace_s: float) -> Iterator[Program]:
    command = [sys.executable, "-c", PROGRAM, str(grace_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            program = Program(process)
            assert program.read() == "ready"
            yield program
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_is_remembered_and_ends_nothing(name: str) -> None:
    with running(60.0) as program:
        program.send(signal.Signals[name])
        assert program.answer("asked") == name
        program.send(signal.SIGINT)
        assert program.answer("asked") == name, "the first one counts"
        assert program.answer("close") == "closed"
        # Signals do what they always did.
        program.send(signal.SIGTERM)
        assert program.process.wait() == -signal.SIGTERM


def test_a_warning_has_no_deadline_and_a_stop_after_it_has_one() -> None:
    """The time limit that it warns of is minutes away."""
    with running(0.05) as program:
        program.send(signal.SIGUSR2)
        for _ in range(2):
            assert program.answer("asked") == "SIGUSR2"
        program.write("stuck")
        program.send(signal.SIGINT)
        assert program.read() == "deadline SIGINT"
        assert program.process.wait() == 7
