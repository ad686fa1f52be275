"""What rounding may add to gradients where a derivative is what large terms leave of each other.

Softmax under a cross-entropy has the derivative p - 1 at the label: of a row that is surely right
1e-10 may be left of two ones, and single precision says 0 or 1e-7. GELU's is Phi(x) + x phi(x), of
which sound code computes Phi as (1 + erf) / 2: far below zero 1e-22 is left of terms near one half,
and single precision says 0 or 1e-8. Everything in front of such a place gets that error, however
much larger than its own gradient it is. So the error is bounded by the terms, not by what is left.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class BackwardRounding:
    """One draw of such errors, each as large as `eps` of the derivative's terms, of either sign.

    A forward pass with it has the same outputs; its gradients differ from those of one without it
    by the errors, carried through everything in front of them. The first draw (0) has all errors
    of one sign, as where all rows lose the same small difference.
    """

    def __init__(self, eps: float, draw: int) -> None:
        self.eps, self.draw = eps, draw
        self._signs = torch.Generator().manual_seed(draw)

    def of(self, x: Tensor, terms: Tensor) -> Tensor:
        """Zeros, whose derivative by `x` is the error of one with terms of these magnitudes."""
        signs = torch.ones_like(terms)
        if self.draw:
            drawn = torch.randint(0, 2, terms.shape, generator=self._signs)
            signs = drawn.to(terms.dtype) * 2 - 1
        return (x - x.detach()) * (self.eps * signs * terms.detach())


def gelu(x: Tensor, rounding: BackwardRounding | None) -> Tensor:
    """Hendrycks & Gimpel 2016: x times the normal distribution function."""
    erf = torch.erf(x / math.sqrt(2.0))
    value = x * 0.5 * (1.0 + erf)
    if rounding is None:
        return value
    density = (-0.5 * x.square()).exp() / math.sqrt(2.0 * math.pi)
    return value + rounding.of(x, 0.5 * (1.0 + erf.abs()) + (x * density).abs())


def log_softmax(x: Tensor, rounding: BackwardRounding | None) -> Tensor:
    """Of each row. Entry k's derivative by entry j is (1 where j is k) - p_j, where p_j is the
    exponential of a logarithm with a rounding of its own."""
    value = x - x.logsumexp(1, keepdim=True)
    if rounding is None:
        return value
    probability = value.exp()
    carried = rounding.of(x, probability * (1.0 + value.abs())).sum(1, keepdim=True)
    return value + rounding.of(x, torch.ones_like(x)) + carried
