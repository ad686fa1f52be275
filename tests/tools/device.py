"""A device's stream of work, moved by hand: for what is kept of CUDA events, where there is no GPU.

As CUDA does, an event has no time before the stream has reached it, and asking for it is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from gnnhpc.engines.clock import Clock


@dataclass
class Stream:
    """`enqueued_ms` of work were given; the device has done `done_ms` of it."""

    enqueued_ms: float = 0.0
    done_ms: float = 0.0
    events: list[Event] = field(default_factory=list)

    def give(self, ms: float) -> None:
        self.enqueued_ms += ms

    def work(self, ms: float) -> None:
        self.done_ms = min(self.done_ms + ms, self.enqueued_ms)


@dataclass
class Event:
    stream: Stream
    timed: bool
    at_ms: float = float("inf")

    def record(self) -> None:
        self.at_ms = self.stream.enqueued_ms

    def query(self) -> bool:
        return self.at_ms <= self.stream.done_ms

    def synchronize(self) -> None:
        self.stream.done_ms = max(self.stream.done_ms, self.at_ms)

    def elapsed_time(self, later: Event) -> float:
        if not (self.timed and later.timed and self.query() and later.query()):
            raise RuntimeError("device not ready")
        return later.at_ms - self.at_ms


@contextlib.contextmanager
def fake_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stream, Clock]]:
    """A clock of a GPU whose stream the test moves."""
    stream = Stream()

    def make(*, timed: bool) -> Event:
        stream.events.append(Event(stream, timed))
        return stream.events[-1]

    monkeypatch.setattr(Clock, "_make_event", staticmethod(make))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    yield stream, Clock(torch.device("cuda", 0))
