"""Whether a rank's generators begin where the seed puts them, and layers alone draw from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnhpc.check.watches.findings import Findings
from gnnhpc.engines.stage import Stage
from gnnhpc.models.recomputation import is_recomputing

NAME = "generators"
MOST_BEGINNINGS = 100_000
"""Of forwards, that are remembered: some tens of MiB."""


def other_generators(seed: int, rank: int, devices: Sequence[torch.device]) -> str | None:
    """Which are elsewhere, in words; none where all are there.

    A rank's seed is the first 63 bits that Python's generator gives from "gnnhpc/<seed>/<rank>".
    """
    own = random.Random(f"gnnhpc/{seed}/{rank}").getrandbits(63)
    wrong = [*_elsewhere(own, devices)]
    return (
        f"{', '.join(wrong)} did not begin where the seed says for rank {rank}" if wrong else None
    )


@dataclass
class _Forwards:
    """Those of one part of the stage, in training, by what torch's generator was."""

    began: bytes = b""
    ended: bytes = b""
    """Of the newest."""
    beginnings: dict[int, None] = field(default_factory=dict)
    """Of forwards that drew from it, the oldest first."""

    def ends(self, state: bytes) -> None:
        self.ended = state
        if state != self.began:
            self.beginnings[hash(self.began)] = None
            if len(self.beginnings) > MOST_BEGINNINGS:
                del self.beginnings[next(iter(self.beginnings))]


@dataclass
class DrawnByLayers:
    """Holds the generators before a step against those after the step before, and at the step's
    first forward; between evaluations and training steps it does not, as evaluations may draw.

    And no two forwards of a part that draw from torch's generator begin at the same numbers.
    """

    findings: Findings
    _attached: bool = False
    _before: tuple[Any, ...] | None = None
    _after: tuple[Any, ...] | None = None
    _at_forward: tuple[Any, ...] | None = None
    _forwards: list[_Forwards] = field(default_factory=list)
    """Of each part."""
    _in_step: bool = False
    _repeats: bool = False
    """Whether a forward of this step began where an earlier one had."""

    def attach(self, stage: Stage) -> None:
        self._attached = True
        for part in stage.parts:
            forwards = _Forwards()
            self._forwards.append(forwards)
            # Before a user's own, which may draw.
            begins = partial(self._begins, forwards)
            part.layers[0].register_forward_pre_hook(begins, prepend=True)
            part.layers[-1].register_forward_hook(partial(self._ends, forwards))

    def before_step(self, step: int) -> None:
        if not self._attached:
            return
        self._in_step, self._repeats = True, False
        self._before, self._at_forward = _states(), None
        if self._after is not None and self._after != self._before:
            cause = "between this step and the one before something drew from them, or set them"
            self.findings.add(NAME, "train", step, cause)

    def after_step(self, step: int) -> None:
        if not self._attached:
            return
        self._in_step = False
        self._after = _states()
        if self._repeats:
            cause = "a forward began with the random numbers of an earlier one"
            self.findings.add(NAME, "train", step, cause)
        if self._at_forward is not None and self._at_forward != self._before:
            cause = "before its first forward something drew from them, or set them"
            self.findings.add(NAME, "train", step, cause)

    def evaluates(self) -> None:
        self._after = None

    def _begins(self, forwards: _Forwards, _layer: nn.Module, _given: tuple[Any, ...]) -> None:
        if not self._in_step or is_recomputing():
            return
        if self._at_forward is None:
            self._at_forward = _states()
        forwards.began = state = _torchs()
        # What layers set themselves is where a forward has ended.
        if all(state != each.ended for each in self._forwards):
            self._repeats = self._repeats or hash(state) in forwards.beginnings

    def _ends(self, forwards: _Forwards, *_: Any) -> None:
        if self._in_step and not is_recomputing():
            forwards.ends(_torchs())


def _states() -> tuple[Any, ...]:
    """Of the CPU's: reading a device's would wait for it."""
    return _torchs(), random.getstate(), _numpys(np.random.get_state())


def _torchs() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _elsewhere(seed: int, devices: Sequence[torch.device]) -> Iterator[str]:
    if not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(seed).get_state()):
        yield "torch's"
    if random.getstate() != random.Random(seed).getstate():
        yield "Python's"
    if _numpys(np.random.get_state()) != _numpys(np.random.RandomState(seed % 2**32).get_state()):
        yield "numpy's"
    for device in devices:
        if device.type == "cuda":
            generator = torch.cuda.default_generators[device.index or 0]
            if generator.initial_seed() != seed:
                yield f"that of {device}"


def _numpys(state: Any) -> tuple[Any, ...]:
    kind, keys, *rest = state
    return kind, keys.tobytes(), *rest
