"""Parameters moved along their gradients, or up and down at random, and put back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
    for before, gradient in zip(point.before, point.gradients, strict=True):
        of_p, of_g = _norm(before), 0.0 if gradient is None else _norm(gradient)
        patterns.append(gradient if of_g else None)
        scales.append(of_p / of_g if of_g else 0.0)
        steepness += of_p * of_g
    return Direction(point, patterns, scales), steepness


def random_signs(point: Point, seed: int) -> tuple[Direction, float]:
    """Each number up or down by its parameter's root mean square: a direction that knows nothing of
    the gradient. And the square of how much the loss grows a length, its mean over all signs.
    """
    drawn = torch.Generator().manual_seed(seed)
    patterns, scales, square = list[Tensor | None](), _root_mean_squares(point.before), 0.0
    for p, gradient, scale in zip(point.parameters, point.gradients, scales, strict=True):
        signs = torch.randint(0, 2, p.shape, generator=drawn, dtype=torch.int8)
        patterns.append(signs.mul_(2).sub_(1).to(p.device))
        square += 0.0 if gradient is None else (scale * _norm(gradient)) ** 2
    return Direction(point, patterns, scales), square


def _root_mean_squares(parameters: Sequence[Tensor]) -> list[float]:
    """Of each; one that is zero moves as those that are not, on average."""
    found = [_norm(p) / math.sqrt(max(1, p.numel())) for p in parameters]
    others = [each for each in found if each]
    mean = sum(others) / len(others) if others else 1.0
    return [each or mean for each in found]


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
