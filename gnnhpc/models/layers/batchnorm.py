"""BatchNorm over all images and nodes of a micro-batch, with running statistics of two kinds.

`micro` is torch's own: every micro-batch moves the running statistics. `deferred` normalises each
micro-batch too, but moves the running statistics once a mini-batch, by the statistics of all its
rows together (GPipe, Huang et al. 2019, section 2.2).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnnhpc.models.model import BatchNormMode

_thread = threading.local()


@contextlib.contextmanager
def recomputing() -> Iterator[None]:
    """Around a forward that this thread recomputes: its statistics were observed before."""
    _thread.recomputing = True
    try:
        yield
    finally:
        _thread.recomputing = False


def is_recomputing() -> bool:
    """Whether this thread recomputes a forward, because its activations were not kept."""
    return getattr(_thread, "recomputing", False)


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` with the same parameters, buffers and state dict.

    Input and output are `[rows, channels]`. In `deferred` mode the engine calls `end_minibatch`
    after the last micro-batch of a training step; nothing is pending between steps, so that a state
    dict taken there is complete.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, channels: int, mode: BatchNormMode = "micro", *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(channels, dtype=dtype)
        self.mode = mode
        self._rows = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def forward(self, rows: Tensor) -> Tensor:
        if self.mode == "micro" or not self.training:
            return super().forward(rows)
        normalised = F.batch_norm(
            rows, None, None, self.weight, self.bias, training=True, eps=self.eps
        )
        wide = rows.detach().double()
        self.observe(wide.mean(0), wide.var(0, correction=0), len(rows))
        return normalised

    @property
    def step(self) -> float:
        """The share by which a batch moves the running statistics, torch's `momentum`."""
        return self.momentum if self.momentum is not None else 0.1

    @torch.no_grad()
    def observe(self, mean: Tensor, variance: Tensor, rows: int) -> None:
        """Add a training micro-batch's statistics: `[channels]` mean and biased variance.

        Implementations that compute them elsewhere call it; a recomputed forward is not observed
        again. Raises ValueError for a single row, which has no variance, as torch does.
        """
        if is_recomputing():
            return
        if rows < 2:
            raise ValueError(f"BatchNorm needs more than {rows} row to train on")
        if self.mode == "micro":
            self._move(mean, variance, rows)
            return
        mean, squares = mean.double(), variance.double() * rows
        if self._mean is None or self._squares is None:
            self._rows, self._mean, self._squares = rows, mean, squares
            return
        # Chan, Golub & LeVeque 1979: sums of squares about the joint mean, without cancellation.
        total = self._rows + rows
        step = mean - self._mean
        self._squares = self._squares + squares + step.square() * (self._rows * rows / total)
        self._mean = self._mean + step * (rows / total)
        self._rows = total

    def end_minibatch(self) -> None:
        """Move the running statistics by what was observed since the last call."""
        if self._mean is None or self._squares is None:
            return
        self._move(self._mean, self._squares / self._rows, self._rows)
        self.forget_minibatch()

    def forget_minibatch(self) -> None:
        """Drop what was observed since the last end of a mini-batch."""
        self._rows, self._mean, self._squares = 0, None, None

    @torch.no_grad()
    def _move(self, mean: Tensor, variance: Tensor, rows: int) -> None:
        unbiased = torch.empty_like(self.running_var)
        torch.mul(variance, rows / (rows - 1), out=unbiased)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.step)
        self.running_var.lerp_(unbiased, self.step)
        self.num_batches_tracked.add_(1)
