"""Whether a rank's generators begin where the seed puts them, and layers alone draw from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnhpc.check.watches.findings import Findings
from gnnhpc.engines.stage import Stage

NAME = "generators"


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
class DrawnByLayers:
    """Holds the generators before a step against those after the step before, and at the step's
    first forward; between evaluations and training steps it does not, as evaluations may draw."""

    findings: Findings
    _attached: bool = False
    _before: tuple[Any, ...] | None = None
    _after: tuple[Any, ...] | None = None
    _at_forward: tuple[Any, ...] | None = None

    def attach(self, stage: Stage) -> None:
        self._attached = True
        for part in stage.parts:
            # Before a user's own, which may draw.
            part.layers[0].register_forward_pre_hook(self._begins, prepend=True)

    def before_step(self, step: int) -> None:
        if not self._attached:
            return
        self._before, self._at_forward = _states(), None
        if self._after is not None and self._after != self._before:
            cause = "between this step and the one before something drew from them, or set them"
            self.findings.add(NAME, "train", step, cause)

    def after_step(self, step: int) -> None:
        if not self._attached:
            return
        self._after = _states()
        if self._at_forward is not None and self._at_forward != self._before:
            cause = "before its first forward something drew from them, or set them"
            self.findings.add(NAME, "train", step, cause)

    def evaluates(self) -> None:
        self._after = None

    def _begins(self, _layer: nn.Module, _given: tuple[Any, ...]) -> None:
        """Inside the step."""
        if self._at_forward is None:
            self._at_forward = _states()


def _states() -> tuple[Any, ...]:
    """Of the CPU's: reading a device's would wait for it."""
    torchs = torch.get_rng_state().numpy().tobytes()
    return torchs, random.getstate(), _numpys(np.random.get_state())


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
