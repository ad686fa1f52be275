"""The algebra that folds a ViG layer's linear parts, with gradients: on parameters and statistics.

Linear and BatchNorm before the GELU are one affine map of a node's three channels, because the
mean and variance of W x follow from the mean m and covariance C of x: W m and diag(W C W'); the
Linear's bias has no part in it, as BatchNorm takes it away again. GraphConv keeps it affine, in the
node's channels, their sum over the neighbours and the number of neighbours. All tensors here are
float64, whatever the parameters are, and have at most hidden x hidden elements.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean `[3]` and biased covariance `[3, 3]` of rows."""

    mean: Tensor
    covariance: Tensor


class Norm(NamedTuple):
    """A BatchNorm: `scale * (x - mean)`, and its parameter `bias` added. All are `[channels]`."""

    mean: Tensor
    inverse: Tensor
    """One over the standard deviation."""
    scale: Tensor
    """That times the parameter `weight`."""


def norm_of(weight: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Norm:
    """The BatchNorm of rows with this mean and biased variance."""
    inverse = (variance + eps).rsqrt()
    return Norm(mean, inverse, weight * inverse)


def fold_norm(bias: Tensor, norm: Norm) -> Tensor:
    """What a BatchNorm adds to the rows times its scale."""
    return torch.addcmul(bias, norm.scale, norm.mean, value=-1)


def unfold_norm(
    norm: Norm, sum_g: Tensor, sum_gy: Tensor, rows: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Gradients of BatchNorm of y, from sums over the rows of its output's gradient g and g * y: of
    its weight and bias, and `along` [3, channels], by which that of y is
    g * along[0] + y * along[1] + along[2].

    Its mean and variance are those of y, and vary with it.
    """
    d_weight = norm.inverse * torch.addcmul(sum_gy, norm.mean, sum_g, value=-1)
    of_mean = norm.scale / -rows
    slope = of_mean * norm.inverse * d_weight
    shift = torch.addcmul(of_mean * sum_g, slope, norm.mean, value=-1)
    return (d_weight, sum_g), torch.stack([norm.scale, slope, shift])


def hidden_variance(weight: Tensor, of: Moments) -> Tensor:
    """The biased variance of `weight x`, `[hidden]`."""
    return ((weight @ of.covariance) * weight).sum(1).clamp_min(0)


def fold_linear(weight: Tensor, bias: Tensor, norm: Norm) -> Tensor:
    """A Linear without a bias, then BatchNorm, as `[hidden, 4]`: three weights and the constant."""
    return torch.cat([norm.scale[:, None] * weight, fold_norm(bias, norm)[:, None]], 1)


def unfold_linear(
    d_folded: Tensor, weight: Tensor, norm: Norm, of: Moments
) -> tuple[tuple[Tensor, Tensor, Tensor], Moments]:
    """Gradients through `fold_linear`, and through the statistics that come from the moments: of
    the Linear's weight and the BatchNorm's weight and bias, and of the moments."""
    d_weight, d_bias = d_folded[:, :3], d_folded[:, 3]
    d_scale = torch.addcmul((d_weight * weight).sum(1), d_bias, norm.mean, value=-1)
    d_gamma = d_scale * norm.inverse
    # Minus the gradients of the mean, and of the variance twice.
    scaled = norm.scale[:, None] * d_folded
    of_mean, of_variance = scaled[:, 3], norm.scale * norm.inverse * d_gamma
    grad = torch.addr(scaled[:, :3], of_mean, of.mean, alpha=-1)
    grad = torch.addcmul(grad, of_variance[:, None], weight @ of.covariance, value=-1)
    d_covariance = weight.t() @ (of_variance[:, None] * weight) / -2
    return (grad, d_gamma, d_bias), Moments(weight.t() @ -of_mean, d_covariance)


def fold_conv(folded: Tensor, root: Tensor, relative: Tensor, bias: Tensor) -> Tensor:
    """GraphConv after a folded Linear: `[hidden, 8]` for channels, neighbour sums, degree, 1.

    What the degree and the constant contribute nearly cancels the channels' means.
    """
    own, around = root @ folded, relative @ folded
    return torch.cat([own[:, :3], around, (own[:, 3] + bias)[:, None]], 1)


def unfold_conv(
    d_first: Tensor, folded: Tensor, root: Tensor, relative: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Gradients through `fold_conv`: of folded; and of root, relative and the bias."""
    d_own = torch.cat([d_first[:, :3], d_first[:, 7:]], 1)
    d_around = d_first[:, 3:7]
    d_folded = torch.addmm(root.t() @ d_own, relative.t(), d_around)
    return d_folded, (d_own @ folded.t(), d_around @ folded.t(), d_first[:, 7])


def moments_slope(d_moments: Moments, of: Moments, rows: int) -> Tensor:
    """What the moments' gradient, of a symmetric covariance, adds to that of x: three rows of a
    matrix M and a vector v `[4, 3]`, for x M + v."""
    matrix = d_moments.covariance * (2 / rows)
    vector = torch.addmv(d_moments.mean, matrix.t(), of.mean, beta=1 / rows, alpha=-1)
    return torch.vstack([matrix, vector])
