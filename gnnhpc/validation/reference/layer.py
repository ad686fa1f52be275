"""The protocol of the reference's layers, and the parts that several layers share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gnnhpc.models.pooling import Pooling
from gnnhpc.validation.reference.forward_pass import Activation, ForwardPass, SparseFeatures
from gnnhpc.validation.reference.random_numbers import dropout_weights

EPS = 1e-5
"""Added to variances under a square root, torch's default."""

Parameters = Mapping[str, Tensor]


def seed_of(seed: int, layer: str) -> int:
    """A layer's own seed: the first seven bytes, highest first, of SHA-256 of "seed/layer"."""
    return int(hashlib.sha256(f"{seed}/{layer}".encode()).hexdigest()[:14], 16)


class ReferenceLayer(Protocol):
    """One layer: the initial values of its parameters, and its output."""

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial values by name, from torch's generator in the documented order."""
        ...

    def norms(self) -> dict[str, int]:
        """The channels of each BatchNorm by its full name."""
        ...

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        """The output for an input and parameters in float64."""
        ...


class WithoutNorms:
    """Mixed into a layer that has no BatchNorm."""

    def norms(self) -> dict[str, int]:
        return {}


class WithoutParameters(WithoutNorms):
    """Mixed into a layer that has no parameters."""

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {}


def linear_values(
    prefix: str, inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = True
) -> dict[str, Tensor]:
    """A linear layer's initial values as torch draws them: uniform within 1 / sqrt(inputs)."""
    bound = 1.0 / math.sqrt(inputs)
    values = {f"{prefix}.weight": torch.empty(outputs, inputs, dtype=dtype).uniform_(-bound, bound)}
    if bias:
        values[f"{prefix}.bias"] = torch.empty(outputs, dtype=dtype).uniform_(-bound, bound)
    return values


def glorot(*shape: int) -> Tensor:
    """float32, uniform (Glorot & Bengio 2010, equation 16) over the last two dimensions."""
    bound = math.sqrt(6.0 / (shape[-2] + shape[-1]))
    return torch.empty(shape).uniform_(-bound, bound)


def norm_values(prefix: str, channels: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        f"{prefix}.weight": torch.ones(channels, dtype=dtype),
        f"{prefix}.bias": torch.zeros(channels, dtype=dtype),
    }


def linear(x: Tensor, p: Parameters, prefix: str) -> Tensor:
    out = x @ p[f"{prefix}.weight"].T
    return out + p[f"{prefix}.bias"] if f"{prefix}.bias" in p else out


def batch_norm(x: Tensor, p: Parameters, prefix: str, name: str, here: ForwardPass) -> Tensor:
    """Ioffe & Szegedy 2015 over the rows of [rows, channels]; moves `name`'s statistics."""
    statistics = here.statistics[name]
    mean, variance = statistics.mean, statistics.variance
    if here.training:
        mean = x.mean(0)
        variance = (x - mean).square().mean(0)
        statistics.pending.append((mean.detach(), variance.detach(), len(x)))
        if not here.deferred:
            statistics.move()
    normalised = (x - mean) / (variance + EPS).sqrt()
    return normalised * p[f"{prefix}.weight"] + p[f"{prefix}.bias"]


def gelu(x: Tensor) -> Tensor:
    """Hendrycks & Gimpel 2016: x times the normal distribution function."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def relu_dropout(x: Tensor, name: str, p: float, here: ForwardPass) -> Tensor:
    """ReLU, and in training dropout of layer `name`."""
    out = relu(x)
    return out * mask(here, name, p, here.entry_numbers(x)) if here.training and p else out


def mask(here: ForwardPass, name: str, p: float, numbers: Tensor) -> Tensor:
    """float64, the factors of dropout for entries with these numbers: 0 or 1 / (1 - p)."""
    return torch.from_numpy(dropout_weights(here.seed, here.step, name, p, numbers.numpy()))


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of each row's softmax."""
    return x - x.logsumexp(1, keepdim=True)


@dataclass(frozen=True)
class Dropout(WithoutParameters):
    """Dropout of activations [nodes, width], or of the stored values of features."""

    name: str
    p: float

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        if not here.training or not self.p:
            return x
        factors = mask(here, self.name, self.p, here.entry_numbers(x))
        if isinstance(x, SparseFeatures):
            return replace(x, value=x.value * factors)
        return x * factors


@dataclass(frozen=True)
class ReluDropout(WithoutParameters):
    name: str
    p: float

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        return relu_dropout(x, self.name, self.p, here)


@dataclass(frozen=True)
class Elu(WithoutParameters):
    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        return torch.where(x > 0, x, torch.expm1(x.clamp(max=0.0)))


@dataclass(frozen=True)
class LogSoftmax(WithoutParameters):
    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        return log_softmax(x)


@dataclass(frozen=True)
class GraphPooling(WithoutParameters):
    """The sum or mean of the rows of each small graph."""

    how: Pooling

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        assert here.graph_of_row is not None
        total = x.new_zeros(here.graphs, x.shape[1]).index_add(0, here.graph_of_row, x)
        if self.how == "sum":
            return total
        return total / torch.bincount(here.graph_of_row, minlength=here.graphs)[:, None].to(x.dtype)


@dataclass(frozen=True)
class Linear(WithoutNorms):
    """W x + b, with initial values in single precision."""

    inputs: int
    outputs: int

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = linear_values("", self.inputs, self.outputs, torch.float32)
        return {name.removeprefix("."): value.to(dtype) for name, value in values.items()}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        return x @ p["weight"].T + p["bias"]
