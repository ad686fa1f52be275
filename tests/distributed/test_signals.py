"""Signals in another process: the first is remembered, and a stuck rank ends after TERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = """
import os, signal, sys, threading, time
from gnnhpc.distributed.signals import Signals

if sys.argv[2] == "late":
    Signals._read_signals = lambda self: self._finished.wait()

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
    if line == "at once\\n":
        os.kill(os.getpid(), signal.SIGUSR2)
        print(signals.stop_requested(), signals.received, flush=True)
    if line == "stuck\\n":
        # As in a collective: the main thread runs no Python.
        lock = threading.Lock(); lock.acquire(); lock.acquire()
    if line == "close\\n":
        signals.close()
        print("closed", flush=True)
"""


class Program:
    """The program above, spoken to line by line."""

    def __init__(self, grace_s: float, thread: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(grace_s), thread],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.process.wait()


@pytest.fixture
def patient() -> Iterator[Program]:
    program = Program(60.0)
    yield program
    program.process.kill()
    program.end()


@pytest.fixture
def hurried() -> Iterator[Program]:
    program = Program(0.05)
    yield program
    program.process.kill()
    program.end()


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_is_remembered_and_ends_nothing(patient: Program, name: str) -> None:
    patient.send(signal.Signals[name])
    patient.write("asked")
    assert patient.read() == name
    patient.write("close")
    assert patient.read() == "closed"
    assert patient.end() == 0


def test_a_signal_is_known_before_the_thread_has_had_a_processor() -> None:
    program = Program(60.0, "late")
    program.write("at once")
    assert program.read() == "True SIGUSR2"
    program.write("close")
    assert program.read() == "closed"
    assert program.end() == 0


def test_a_stuck_rank_that_is_stopped_ends(hurried: Program) -> None:
    hurried.write("stuck")
    hurried.send(signal.SIGINT)
    assert hurried.read() == "deadline SIGINT"
    assert hurried.end() == 7


def test_a_warning_has_no_deadline_and_term_after_it_has_one(hurried: Program) -> None:
    """The time limit that it warns of is minutes away."""
    hurried.send(signal.SIGUSR2)
    for _ in range(2):
        hurried.write("asked")
        assert hurried.read() == "SIGUSR2"
    hurried.write("stuck")
    hurried.send(signal.SIGTERM)
    assert hurried.read() == "deadline SIGTERM"


def test_once_closed_signals_do_what_they_always_do(patient: Program) -> None:
    patient.write("close")
    assert patient.read() == "closed"
    patient.send(signal.SIGTERM)
    assert patient.process.wait() == -signal.SIGTERM
