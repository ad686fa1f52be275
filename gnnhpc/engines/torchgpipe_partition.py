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
from gnnhpc.engines.activation_checkpointing import recomputed
from gnnhpc.engines.engine import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.models.context import Context

Pair = tuple[Tensor, Tensor]
"""An activation [rows, ...] and the number of its micro-batch, float [1]."""


@dataclass
class PresentStep:
    """What partitions need to know of the present step, as GPipe passes them a number alone."""

    timer: StepTimer
    several_devices: bool = False
    """Then partitions compute at the same time, and have no spans one by one."""
    batch: Batch | None = None
    _moved: dict[tuple[torch.device, int], tuple[GraphChunk, GraphChunk]] = field(
        default_factory=dict
    )
    """By device and identity: a chunk, which is the same in every step, and its copy there."""

    def context(self, microbatch: int, device: torch.device) -> Context:
        """A micro-batch's context, with its chunk on the partition's device."""
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
    def forward(self, microbatch: int) -> Iterator[None]:
        """Around a partition's forward, in the thread that torchgpipe has begun for its device."""
        # torch sets OpenMP's number of threads for this one when it is asked, and not before.
        torch.get_num_threads()
        if self.several_devices:
            yield
            return
        self.timer.begin("forward", microbatch)
        yield
        self.timer.end()


class Partition(nn.Module):
    """Computes a stage on its device; the first takes a micro-batch's inputs itself."""

    def __init__(
        self, stage: Stage, device: torch.device, present: PresentStep, *, is_last: bool
    ) -> None:
        super().__init__()
        self.stage = stage
        self.device = device
        self.present = present
        self.is_last = is_last
        self._forwards = 0
        """In this step."""
        self._to_recompute: list[int] = []
        """Micro-batches whose forward has been, and may be recomputed."""

    def forward(self, given: Tensor | Pair) -> Pair | Tensor:
        """The output, and but for the last partition the number of its micro-batch."""
        activation, number = given if isinstance(given, tuple) else (None, given)
        present = self.present
        microbatch = self._next_microbatch()
        context = present.context(microbatch, self.device)
        assert present.batch is not None
        inputs = present.batch.microbatches[microbatch]
        x = first_input(inputs) if activation is None else activation
        with (
            recomputed(self.stage, present.timer)
            if is_recomputing()
            else present.forward(microbatch)
        ):
            output: Tensor = self.stage(x, context)
        if activation is None and output is x:
            # Autograd marks what it is given as the checkpointed output: not the batch's own.
            output = output.detach()
        if is_recomputing() and not output.requires_grad:
            output = _Tied.apply(output, number)  # type: ignore[no-untyped-call]
        return output if self.is_last else (output, number)

    def begin_step(self) -> None:
        self._forwards, self._to_recompute = 0, []

    def _next_microbatch(self) -> int:
        """The micro-batch, by torchgpipe's order: forwards from first to last, then from last to
        first those that it recomputes. To read the number from a GPU would stop the host."""
        if is_recomputing():
            return self._to_recompute.pop()
        microbatch, self._forwards = self._forwards, self._forwards + 1
        if is_checkpointing():
            self._to_recompute.append(microbatch)
        return microbatch


class _Tied(torch.autograd.Function):
    """An output that needs a gradient and passes none on: of a partition with nothing to train,
    such as one of dropout alone, torchgpipe goes backward through what it has recomputed.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, number: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None
