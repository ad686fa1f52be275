"""Signals: the first is remembered and ends nothing, and a stuck rank ends after TERM or INT."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from gnnhpc.distributed.signals import HANDLED, Signals
from tests.tools.forked import spawn

pytestmark = pytest.mark.distributed


def remembered(name: str) -> tuple[list[str | None], bool]:
    """What is remembered after a signal and after another one; whether handlers are restored."""
    before = [signal.getsignal(number) for number in HANDLED]
    signals = Signals(lambda name: os._exit(7), grace_s=60.0)
    received = []
    for number in (signal.Signals[name], signal.SIGINT):
        os.kill(os.getpid(), number)
        received.append(signals.received)
    signals.close()
    return received, [signal.getsignal(number) for number in HANDLED] == before


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_is_remembered_and_ends_nothing(name: str) -> None:
    assert spawn(remembered, 1, name) == [([name, name], True)]


def stuck() -> list[str | None]:
    """What comes to an end after a warning, and then after INT in a step that does not end."""
    lock, found = threading.Lock(), list[str | None]()

    def on_timeout(name: str) -> None:
        found.append(name)
        lock.release()

    signals = Signals(on_timeout, grace_s=0.05)
    lock.acquire()
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(0.5)
    found.append(signals.received)
    os.kill(os.getpid(), signal.SIGINT)
    assert lock.acquire(timeout=60)
    signals.close()
    return found


def test_a_warning_has_no_deadline_and_a_stop_after_it_has_one() -> None:
    """The time limit that it warns of is minutes away."""
    assert spawn(stuck, 1) == [["SIGUSR2", "SIGINT"]]
