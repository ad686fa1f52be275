"""Whether a rank's generators begin where the seed puts them, and layers alone draw from them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnhpc.check.watches.findings import Findings
from gnnhpc.engines.stage import Stage
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.records.schema import Phase

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
    """Those of one part of the stage, by what one generator was."""

    began: Hashable = None
    ended: Hashable = None
    """Of the newest in training."""
    evaluated: Hashable = None
    """Where the newest ended that was in an evaluation and moved it."""
    beginnings: dict[int, None] = field(default_factory=dict)
    """In training, of forwards that drew from it, the oldest first."""

    def ends(self, state: Hashable) -> None:
        self.ended = state
        if state != self.began:
            self.beginnings[hash(self.began)] = None
            if len(self.beginnings) > MOST_BEGINNINGS:
                del self.beginnings[next(iter(self.beginnings))]


@dataclass
class DrawnByLayers:
    """Holds the generators before a step against those after the step before, or after the
    evaluation between, and at the step's first forward.

    And no two forwards of a part that draw from a generator begin at the same numbers: torch's in
    the whole run, Python's and numpy's, which take longer to read, in one step.
    """

    findings: Findings
    alone: bool = True
    """Whether layers alone draw: a library's sampler draws from the process's generators too."""
    _attached: bool = False
    _before: tuple[Hashable, ...] | None = None
    _after: tuple[Hashable, ...] | None = None
    _at_forward: tuple[Hashable, ...] | None = None
    _torchs: list[_Forwards] = field(default_factory=list)
    """Of each part."""
    _others: list[list[_Forwards]] = field(default_factory=list)
    """Of each part, by Python's and numpy's, in this step; none where it is not looked at."""
    _phase: Phase | None = None
    """Of the present step; none between steps, where watches may compute again."""
    _closely: bool = False
    _repeats: bool = False
    """Whether a forward of this step began where an earlier one had."""

    def attach(self, stage: Stage) -> None:
        self._attached = True
        for number, part in enumerate(stage.parts):
            self._torchs.append(_Forwards())
            # Before a user's own, which may draw.
            begins = partial(self._begins, number)
            part.layers[0].register_forward_pre_hook(begins, prepend=True)
            part.layers[-1].register_forward_hook(partial(self._ends, number))

    def before_step(self, step: int, closely: bool) -> None:
        if not self._attached:
            return
        self._phase, self._closely, self._repeats = "train", closely, False
        self._others = [[_Forwards(), _Forwards()] for _ in self._torchs]
        self._before, self._at_forward = _states(), None
        if self.alone and self._after is not None and self._after != self._before:
            cause = "between this step and the one before something drew from them, or set them"
            self.findings.add(NAME, "train", step, cause)

    def after_step(self, step: int) -> None:
        if not self._attached:
            return
        self._phase = None
        self._after = _states()
        if self._repeats:
            cause = "a forward began with the random numbers of an earlier one"
            self.findings.add(NAME, "train", step, cause)
        if self.alone and self._at_forward is not None and self._at_forward != self._before:
            cause = "before its first forward something drew from them, or set them"
            self.findings.add(NAME, "train", step, cause)

    def before_test_step(self) -> None:
        self._phase = "test"

    def after_test_step(self) -> None:
        """Layers may draw in evaluations, too."""
        self._phase = None
        if self._attached:
            self._after = _states()

    def _begins(self, part: int, _layer: nn.Module, _given: tuple[Any, ...]) -> None:
        if self._phase == "test":
            self._torchs[part].began = _torchs()
        if self._phase != "train" or is_recomputing():
            return
        if self._at_forward is None:
            self._at_forward = _states()
        # What layers set themselves is where a forward has ended.
        forwards_of_all = [*self._torchs, *itertools.chain.from_iterable(self._others)]
        ends = [end for each in forwards_of_all for end in (each.ended, each.evaluated)]
        for state, forwards in self._each(part):
            forwards.began = state
            if state not in ends:
                self._repeats = self._repeats or hash(state) in forwards.beginnings

    def _ends(self, part: int, *_: Any) -> None:
        if self._phase == "test":
            if (now := _torchs()) != self._torchs[part].began:
                self._torchs[part].evaluated = now
        elif self._phase == "train" and not is_recomputing():
            for state, forwards in self._each(part):
                forwards.ends(state)

    def _each(self, part: int) -> Iterator[tuple[Hashable, _Forwards]]:
        """What each generator is now, of those that are held in this step."""
        if self._closely:
            yield from zip(_states(), [self._torchs[part], *self._others[part]], strict=True)
        else:
            yield _torchs(), self._torchs[part]


def _states() -> tuple[Hashable, ...]:
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
