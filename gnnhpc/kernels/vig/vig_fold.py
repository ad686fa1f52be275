"""The algebra that folds a ViG layer's linear parts, with gradients: on parameters and statistics.

Linear and BatchNorm before the GELU are one affine map of a node's three channels, because the
mean and variance of W x + b follow from the mean m and covariance C of x: W m + b and
diag(W C W'). GraphConv keeps it affine, in the node's channels, their sum over the neighbours and
the number of neighbours. All tensors here have at most hidden x hidden elements; those of
BatchNorm are float64, whatever the parameters are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean `[3]` and biased covariance `[3, 3]` of a layer's input over all rows, float64."""

    mean: Tensor
    covariance: Tensor


class Norm(NamedTuple):
    """A BatchNorm's parameters, with the mean and biased variance it normalises by."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    eps: float

    @property
    def inverse(self) -> Tensor:
        """One over the standard deviation, float64."""
        return (self.variance.double() + self.eps).rsqrt()


def hidden_moments(weight: Tensor, bias: Tensor, of: Moments) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of `weight x + bias`, `[hidden]` float64."""
    wide = weight.double()
    variance = ((wide @ of.covariance) * wide).sum(1).clamp_min(0)
    return wide @ of.mean + bias.double(), variance


def fold_linear(weight: Tensor, bias: Tensor, norm: Norm) -> Tensor:
    """Linear, then BatchNorm, as one `[hidden, 4]` float64: three weights and the constant."""
    scale = norm.weight.double() * norm.inverse
    constant = norm.bias.double() + scale * (bias.double() - norm.mean.double())
    return torch.cat([scale[:, None] * weight.double(), constant[:, None]], 1)


def unfold_linear(
    d_folded: Tensor, weight: Tensor, bias: Tensor, norm: Norm, of: Moments
) -> tuple[tuple[Tensor, ...], Moments]:
    """Gradients through `fold_linear`, and through the statistics that come from the moments: of
    the Linear's weight and bias and the BatchNorm's, and of the moments."""
    d_folded, wide, inverse = d_folded.double(), weight.double(), norm.inverse
    d_weight, d_constant = d_folded[:, :3], d_folded[:, 3]
    scale = norm.weight.double() * inverse
    centred = bias.double() - norm.mean.double()  # -weight m, where the mean is the batch's
    d_scale = (d_weight * wide).sum(1) + d_constant * centred
    d_centred = scale * d_constant
    grad = scale[:, None] * d_weight
    d_variance = -0.5 * d_scale * scale * inverse.square()
    grad += 2 * d_variance[:, None] * (wide @ of.covariance) - torch.outer(d_centred, of.mean)
    d_moments = Moments(-(wide.t() @ d_centred), wide.t() @ (d_variance[:, None] * wide))
    # BatchNorm removes a constant that is added before it.
    no_bias = torch.zeros_like(d_constant)
    return (grad, no_bias, d_scale * inverse, d_constant), d_moments


def fold_conv(folded: Tensor, root: Tensor, relative: Tensor, bias: Tensor) -> Tensor:
    """GraphConv after a folded Linear: `[hidden, 8]` for channels, neighbour sums, degree, 1.

    float64: what the degree and the constant contribute nearly cancels the channels' means.
    """
    own = root.double() @ folded
    around = relative.double() @ folded
    return torch.cat([own[:, :3], around, (own[:, 3] + bias)[:, None]], 1)


def unfold_conv(
    d_first: Tensor, folded: Tensor, root: Tensor, relative: Tensor
) -> tuple[Tensor, ...]:
    """Gradients through `fold_conv`, float64: of folded, root, relative and the bias."""
    root, relative = root.double(), relative.double()
    d_own = torch.cat([d_first[:, :3], d_first[:, 7:]], 1)
    d_around = d_first[:, 3:7]
    d_folded = root.t() @ d_own + relative.t() @ d_around
    return d_folded, d_own @ folded.t(), d_around @ folded.t(), d_first[:, 7]


def fold_norm(norm: Norm) -> tuple[Tensor, Tensor]:
    """BatchNorm as scale and shift, `[channels]` float64."""
    scale = norm.weight.double() * norm.inverse
    return scale, norm.bias.double() - scale * norm.mean.double()


def unfold_norm(
    norm: Norm, sum_g: Tensor, sum_gy: Tensor, rows: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Gradients of BatchNorm of y, from sums over the rows of its output's gradient g and g * y: of
    its weight and bias, and `along` [3, channels], by which that of y is
    g * along[0] + y * along[1] + along[2].

    Its mean and variance are those of y, and vary with it.
    """
    inverse, mean = norm.inverse, norm.mean.double()
    scale = norm.weight.double() * inverse
    d_weight = inverse * (sum_gy - mean * sum_g)
    slope = -scale * inverse * d_weight / rows
    shift = -scale * sum_g / rows - slope * mean
    return (d_weight, sum_g), torch.stack([scale, slope, shift])


def moments_slope(d_moments: Moments, of: Moments, rows: int) -> tuple[Tensor, Tensor]:
    """What the moments' gradient adds to that of x: `x @ matrix + vector`, `[3, 3]` and `[3]`."""
    matrix = (d_moments.covariance + d_moments.covariance.t()) / rows
    return matrix, d_moments.mean / rows - of.mean @ matrix
