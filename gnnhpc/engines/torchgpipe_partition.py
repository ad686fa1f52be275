"""A stage as torchgpipe's GPipe calls it: it passes only tensors, so a micro-batch is a number.

The number is a float that needs a gradient: torchgpipe's checkpointing takes no output without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchgpipe import is_checkpointing, is_recomputing

from gnnhpc.batches.batch import Batch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.engines.base import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import OpenSpan, StepTimer
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.models.context import Context
from gnnhpc.models.recomputation import Before

Pair = tuple[Tensor, Tensor]
"""An activation [rows, ...] and the number of its micro-batch, float [1]."""


class BackwardTurns:
    """Spans of a backward that autograd runs by itself: whose turn it is, hooks tell."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._open: OpenSpan | None = None

    def take(self, microbatch: int) -> None:
        """What follows is of this micro-batch."""
        if self._open is None:
            self._open = self._timer.begin("backward", microbatch)
        elif microbatch != self._open.microbatch:
            # At one moment: a layer's backward goes on to the first mark of the next micro-batch.
            self._open = self._timer.turn(self._open, microbatch)

    def end(self) -> None:
        if self._open is not None:
            self._timer.end(self._open)
        self._open = None


@dataclass
class PresentStep:
    """What partitions need to know of the present step, as GPipe tells them a number alone."""

    timer: StepTimer
    turns: BackwardTurns
    several_devices: bool = False
    """Then partitions compute at the same time, and are not timed one by one."""
    batch: Batch | None = None
    called: list[tuple[int, Tensor]] = field(default_factory=list)
    """Of each call of a partition, the micro-batch that it took it for, and the number given."""
    _moved: dict[tuple[torch.device, int], tuple[GraphChunk, GraphChunk]] = field(
        default_factory=dict
    )
    """By device and identity: a chunk, which is the same in every step, and its copy there."""

    def check_order(self) -> None:
        """After a step; raises GnnhpcError where a partition took a micro-batch for another."""
        calls, self.called = self.called, []
        for device in dict.fromkeys(number.device for _, number in calls):
            here = [(taken, number) for taken, number in calls if number.device == device]
            given = torch.cat([number for _, number in here]).tolist()
            taken = [taken for taken, _ in here]
            if given != taken:
                raise GnnhpcError(
                    f"torchgpipe called partitions on {device} with micro-batches {given}, where "
                    f"its schedule has {taken}"
                )

    def context(self, microbatch: int, device: torch.device) -> Context:
        """A micro-batch's context, its chunk on the device of the partition that asks."""
        assert self.batch is not None
        context = self.batch.microbatches[microbatch].context
        chunk = context.graph
        if chunk is None or chunk.nodes.device == device:
            return context
        key = (device, id(chunk))
        if key not in self._moved:
            self._moved[key] = (chunk, chunk.to(device))
        return replace(context, graph=self._moved[key][1])

    @contextmanager
    def forward(self, microbatch: int, *, ends_step: bool) -> Iterator[None]:
        """Around a partition's forward, in the thread that torchgpipe has begun for its device."""
        # torch tells OpenMP how many threads this one may use when it is asked, and not before.
        torch.get_num_threads()
        if self.several_devices:
            yield
            return
        with self.timer.span("forward", microbatch):
            yield
        if ends_step:
            self.timer.threads.visit()

    @contextmanager
    def again(self, microbatch: int, part: Stage, before: Before) -> Iterator[None]:
        """Around a forward that torchgpipe computes again, in the thread of its backward."""
        if not self.several_devices:
            self.turns.take(microbatch)
        with part.state.again(before):
            yield


class Partition(nn.Module):
    """Computes a part of a stage on its device; the first takes a micro-batch's inputs itself."""

    def __init__(
        self, part: Stage, device: torch.device, present: PresentStep, *, is_last: bool
    ) -> None:
        super().__init__()
        self.part = part
        self.device = device
        self.present = present
        self.is_last = is_last
        self._forwards = 0
        """In this step."""
        self._again: list[tuple[int, Before]] = []
        """Micro-batches whose forward has been, and may be computed again; what it began from."""

    def forward(self, given: Tensor | Pair) -> Pair | Tensor:
        """The output, and but for the last partition the number of its micro-batch."""
        activation, number = given if isinstance(given, tuple) else (None, given)
        present = self.present
        microbatch, before = self._take(number.detach())
        context = present.context(microbatch, self.device)
        assert present.batch is not None
        batch = present.batch.microbatches
        x = first_input(batch[microbatch]) if activation is None else activation
        ends = self.is_last and microbatch == len(batch) - 1
        with (
            present.again(microbatch, self.part, before)
            if before is not None
            else present.forward(microbatch, ends_step=ends)
        ):
            output: Tensor = self.part(x, context)
        if activation is None and output is x:
            # Autograd marks what is given to it as the checkpointed output: not the batch's own.
            output = output.detach()
        if is_recomputing() and not output.requires_grad:
            output = _Tied.apply(output, number)  # type: ignore[no-untyped-call]
        if output.requires_grad and not present.several_devices:
            output.register_hook(lambda gradient: present.turns.take(microbatch))
        return output if self.is_last else (output, number)

    def begin_step(self) -> None:
        self._forwards, self._again = 0, []

    def _take(self, number: Tensor) -> tuple[int, Before | None]:
        """The micro-batch, by torchgpipe's order: forwards from first to last, then from last to
        first those that it computes again, each with what it began from. To read the number
        from a GPU would stop the host; it is compared after the step.
        """
        before = None
        if is_recomputing():
            microbatch, before = self._again.pop()
        else:
            microbatch, self._forwards = self._forwards, self._forwards + 1
            if is_checkpointing():
                self._again.append((microbatch, self.part.state.before()))
        self.present.called.append((microbatch, number))
        return microbatch, before


class _Tied(torch.autograd.Function):
    """An output that needs a gradient and passes none on: of a partition with nothing to train,
    such as one of dropout alone, torchgpipe goes backward through what it has computed again.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, number: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None
