"""Parameters moved along their gradients, or up and down at random, and put back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_MORE = 10.0
"""Of its size, that a parameter moves where the loss hardly grows by it."""
BESIDE = 0.01
"""Of the parameters' sizes, how far another place is."""


class Point:
    """Parameters as they are, and their gradients; those of None are zero."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.before = [p.detach().clone() for p in parameters]
        self.gradients = [
            None if p.grad is None else p.grad.to(torch.float64, copy=True) for p in parameters
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        for p, before in zip(self.parameters, self.before, strict=True):
            p.copy_(before)


@dataclass(frozen=True)
class Direction:
    """Of each parameter a pattern and how much of it is one length; None leaves it alone."""

    point: Point
    patterns: Sequence[Tensor | None]
    scales: Sequence[float]

    @torch.no_grad()
    def move(self, length: float) -> tuple[float, int]:
        """Set the parameters so far from where they were, in their precision: by how much the loss
        is larger there, as the gradients say, and how many numbers moved."""
        point, larger, moved = self.point, 0.0, 0
        for number, pattern in enumerate(self.patterns):
            if pattern is None:
                continue
            p, before, gradient = (
                each[number] for each in (point.parameters, point.before, point.gradients)
            )
            assert p is not None and before is not None
            p.copy_(before.double() + length * self.scales[number] * pattern)
            by = p.double() - before.double()
            moved += int(by.count_nonzero())
            if gradient is not None:
                larger += float((gradient * by).sum())
        return larger, moved


def along_gradient(point: Point) -> tuple[Direction, float]:
    """Each parameter's gradient, as long as the parameter: no layer's is lost in others'. And by
    how much the loss grows a length.
    """
    patterns: list[Tensor | None] = []
    scales, steepness = [], 0.0
    norms = _norms(point.gradients)
    for before, gradient, of_g in zip(point.before, point.gradients, norms, strict=True):
        of_p = _norm(before)
        patterns.append(gradient if of_g else None)
        scales.append(of_p / of_g if of_g else 0.0)
        steepness += of_p * of_g
    return Direction(point, patterns, scales), steepness


def random_signs(point: Point, seed: int) -> tuple[Direction, float]:
    """Each number up or down: a direction that knows nothing of the gradient. And the square of how
    much the loss grows a length, its mean over all signs.

    By its parameter's size, and by more where the loss grows less by that than by another
    parameter: what one of them lacks is not to be lost in the others.
    """
    drawn = torch.Generator().manual_seed(seed)
    scales, norms = _sizes(point.before), _norms(point.gradients)
    most = max((scale * norm for scale, norm in zip(scales, norms, strict=True)), default=0.0)
    scales = [
        scale * (min(MOST_MORE, most / (scale * norm)) if norm else MOST_MORE)
        for scale, norm in zip(scales, norms, strict=True)
    ]
    square = sum((scale * norm) ** 2 for scale, norm in zip(scales, norms, strict=True))
    return Direction(point, [_signs(p, drawn) for p in point.parameters], scales), square


@contextlib.contextmanager
def elsewhere(point: Point, seed: int) -> Iterator[None]:
    """The parameters a little beside their place: where biases have hardly moved from zero, many
    units are at their kinks."""
    drawn = torch.Generator().manual_seed(seed)
    signs = [_signs(p, drawn) for p in point.parameters]
    try:
        Direction(point, signs, _sizes(point.before)).move(BESIDE)
        yield
    finally:
        point.put_back()


def _signs(p: Tensor, drawn: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, p.shape, generator=drawn, dtype=torch.int8)
    return signs.mul_(2).sub_(1).to(p.device)


def _sizes(parameters: Sequence[Tensor]) -> list[float]:
    """Root mean squares; of one that is near zero, as biases are at first, their mean."""
    found = [_norm(p) / math.sqrt(max(1, p.numel())) for p in parameters]
    mean = sum(found) / len(found) if any(found) else 1.0
    return [max(each, mean) for each in found]


def _norms(gradients: Sequence[Tensor | None]) -> list[float]:
    return [0.0 if gradient is None else _norm(gradient) for gradient in gradients]


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
