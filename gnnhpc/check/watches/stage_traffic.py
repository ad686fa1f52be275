"""Keeps what one step gives a stage and what it hands on, and looks at its modules meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Inputs
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.tensor_bytes import checksum
from gnnhpc.records.schema import Phase

SAMPLE = 2_048
"""Elements, at most, of each tensor that crosses a cut, which are compared bit for bit."""
RUN = 16
"""Of them lie next to each other, as many as a cache line has of single precision: a step waits for
the line that an element comes with, not for the element."""
RUNS = SAMPLE // RUN
Sliced = TypeVar("Sliced", Tensor, npt.NDArray[Any])
Way = Literal["input", "output", "gradient of the output", "gradient of the input"]
WAYS: tuple[tuple[Way, Way], ...] = (
    ("output", "input"),
    ("gradient of the output", "gradient of the input"),
)
"""What a stage has, and the next stage must have bit for bit."""


@dataclass(frozen=True)
class Crossed:
    """Hashes of what crossed the cuts before and after a stage, or each part of it, in one step."""

    phase: Phase
    step: int
    hashes: dict[tuple[Way, int], list[tuple[int, int]]]
    """By way and part: pairs of a micro-batch and a hash, in the order of micro-batches."""


@dataclass
class StageTraffic:
    """Hooks a stage between `attach` and `detach`, for one step.

    Inside the step it keeps references, small copies of what crosses a cut, and reads a flag a
    module; all is looked at after the step. `on_first` is called before the first forward.
    """

    stage: Stage
    is_first: bool
    is_last: bool
    given: dict[int, list[tuple[Inputs, Context]]] = field(default_factory=dict)
    """By part of those that are called by themselves."""
    wrong_mode: str | None = None
    """A module that was not in the mode that the phase needs."""
    _samples: dict[tuple[Way, int], list[tuple[int, Tensor]]] = field(default_factory=dict)
    _training: bool = True
    _modules: dict[str, nn.Module] = field(default_factory=dict)
    _on_first: Callable[[], None] | None = None
    _handles: list[Any] = field(default_factory=list)

    def attach(self, *, training: bool, on_first: Callable[[], None] | None = None) -> None:
        self.detach()
        self.given, self._samples, self.wrong_mode = {}, {}, None
        self._training, self._on_first = training, on_first
        self._modules = dict(self.stage.named_modules())
        for place, called in enumerate(self.stage.called):
            before, after = partial(self._before_forward, place), partial(self._after, place)
            self._handles += [
                called.parts[0].register_forward_pre_hook(before),
                called.parts[-1].register_forward_hook(after),
            ]

    def detach(self) -> None:
        """Until the next `attach` forwards are as if nobody had ever looked."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def crossed(self, phase: Phase, step: int) -> Crossed:
        """After the step."""
        hashes = {
            where: sorted((m, checksum(sample)) for m, sample in samples)
            for where, samples in self._samples.items()
        }
        return Crossed(phase, step, hashes)

    def sample(self, way: Way, part: int, microbatch: int) -> Tensor | None:
        """Elements of what crossed a cut there, as `sampled` takes them; None where nothing did."""
        return dict(self._samples.get((way, part), [])).get(microbatch)

    def output_gradients(self) -> dict[int, Tensor]:
        """Elements of the model's last part's, by micro-batch, as `sampled` takes them."""
        last = len(self.stage.called) - 1
        return dict(self._samples.get(("gradient of the output", last), []))

    def _before_forward(self, place: int, stage: nn.Module, arguments: tuple[Any, ...]) -> None:
        x, context = arguments
        if is_recomputing():
            return
        if not self.given:
            if self._on_first is not None:
                self._on_first()
            self._check_modes()
        self.given.setdefault(place, []).append((x, context))
        if not (self.is_first and place == 0) and isinstance(x, Tensor):
            self._sample(("input", place), context.microbatch, x)
            self._sample_gradient(("gradient of the input", place), context.microbatch, x, stage)

    def _after(
        self, place: int, stage: nn.Module, arguments: tuple[Any, ...], output: Tensor
    ) -> None:
        _, context = arguments
        ends = self.is_last and place == len(self.stage.called) - 1
        if not ends and not is_recomputing():
            self._sample(("output", place), context.microbatch, output)
        where: tuple[Way, int] = "gradient of the output", place
        self._sample_gradient(where, context.microbatch, output, stage)

    def _check_modes(self) -> None:
        for name, module in self._modules.items():
            if module.training != self._training:
                self.wrong_mode = name or "the stage"
                return

    def _sample(self, where: tuple[Way, int], microbatch: int, tensor: Tensor) -> None:
        self._samples.setdefault(where, []).append((microbatch, copied_sample(tensor.detach())))

    def _sample_gradient(
        self, where: tuple[Way, int], microbatch: int, tensor: Tensor, stage: nn.Module
    ) -> None:
        if tensor.requires_grad and torch.is_grad_enabled():
            told = partial(self._sample, where, microbatch)
            # A receive buffer of torch's schedule is the same tensor in every step.
            self._handles.append(cast(Stage, stage).hook_gradient(tensor, told))


def copied_sample(tensor: Tensor) -> Tensor:
    """What `sampled` takes of it."""
    count = tensor.numel()
    if count <= SAMPLE or not tensor.is_contiguous():
        return sampled(tensor.reshape(-1)).clone()
    # At once: within a step each call takes as long as the elements.
    return tensor.as_strided((RUNS, RUN), (count // RUNS, 1)).clone()


def sampled(flat: Sliced) -> Sliced:
    """Elements that are compared: all [n], or runs [RUNS, RUN] spread evenly over them."""
    if len(flat) <= SAMPLE:
        return flat
    apart = len(flat) // RUNS
    return flat[: RUNS * apart].reshape(RUNS, apart)[:, :RUN]
