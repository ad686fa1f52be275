"""Layers at their real shape, forward and backward, compared with plain torch in float64.

Every comparison is of a copy in training mode. The measured layers stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines.engine import backward
from gnnhpc.kernels.compile import counted_calls
from gnnhpc.kernels.dispatch import plain_torch
from gnnhpc.models.context import Context
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.validation.layers.compared_rows import ComparedRows, compared_rows
from gnnhpc.validation.layers.layer_differences import (
    Comparison,
    Values,
    implementation_of,
    in_double,
    relative_differences,
)
from gnnhpc.validation.layers.layer_inputs import ComparedLayers, LayerInput
from gnnhpc.validation.reference.fresh_layers import Layers, parameters_of
from gnnhpc.validation.reference.running_statistics import RunningStatistics

REPETITIONS = 3
"""Repetitions with other parameters, where gradients differ."""
OTHER_PARAMETERS = 1e-3
"""How far they are from the run's, relative to these."""


def compare_layer(
    layers: ComparedLayers, reference: Layers, given: LayerInput, generator: torch.Generator
) -> Comparison | None:
    """Compare layers with their `reference` on an input that they get in training.

    The reference is the same layers in float64 on the CPU. None for a stack that does not compute
    this input in one call.

    A number just before a ReLU may be within rounding of 0, so that single precision chooses
    another slope than double. Gradients that differ are therefore recomputed with parameters
    that differ a little from the run's: a mistake stays where it is, such a number does not.
    """
    modules = {
        spec.name: copy.deepcopy(layer).train()
        for spec, layer in zip(layers.specs, layers.layers, strict=True)
    }
    last = modules[layers.specs[-1].name]
    if isinstance(given.x, Tensor) and not layers.takes_data:
        given = dataclasses.replace(given, x=_without_equal_rows(given.x, generator))
    rows = compared_rows(layers, given, generator)
    if not len(rows.outputs):
        return Comparison(implementation_of(last, {}), 0.0, 0.0)
    pair = _Pair(layers, modules, reference, rows)
    found = pair.differences(generator)
    if found is None:
        return None
    differences, functions, finite = found
    implementation = implementation_of(last, functions)
    if not finite:
        return Comparison(implementation, math.nan, rows.share, finite=False)
    for _ in range(REPETITIONS):
        if not differences.gradients_differ:
            break
        _change_parameters(modules, generator)
        again = pair.differences(generator)
        if again is not None:
            differences = differences.with_smaller_gradients(again[0])
    return Comparison.of(implementation, differences, rows.share, rows.outputs, rows.inputs)


@dataclass(frozen=True)
class _Pair:
    """Copies of the layers, and their reference."""

    layers: ComparedLayers
    modules: Layers
    reference: Layers
    rows: ComparedRows

    def differences(
        self, generator: torch.Generator
    ) -> tuple[Values, Counter[tuple[str, str]], bool] | None:
        """Relative differences, which of our functions ran, and whether all numbers are finite."""
        before, counted = _buffers(self.modules), counted_calls()
        reference = _Reference(self)
        shape = reference.output.shape
        upstream = torch.zeros(shape)
        chosen = self.rows.reference_outputs.unique()
        upstream[chosen] = torch.randn(len(chosen), *shape[1:], generator=generator)
        found = self._measured(upstream)
        if found is None:
            return None
        functions = counted_calls() - counted
        expected = reference.backward(upstream.double())
        return relative_differences(found, expected, before), functions, expected.is_finite

    def _measured(self, upstream: Tensor) -> Values | None:
        """What the layers give on all rows; `upstream` is the gradient of the reference output."""
        rows, layers = self.rows, self.modules.values()
        x = _leaf(self, rows.x)
        _zero_gradients(self.modules)
        with torch.enable_grad():
            if self.layers.in_one_call:
                out = stacks_of(list(layers))[0](x)
            else:
                out = _through(self.modules, x, rows.context)
            if out is None:
                return None
            outputs = rows.outputs.to(out.device)
            if out.requires_grad:
                gradient = torch.zeros_like(out)
                gradient[outputs] = upstream[rows.reference_outputs].to(out)
                backward(out, gradient)
        for module in (m for layer in layers for m in layer.modules()):
            # BatchNorm's deferred statistics move at a mini-batch's end.
            getattr(module, "end_minibatch", lambda: None)()
        gradients = {
            name: in_double(_gradient(p)) for name, p in parameters_of(self.modules).items()
        }
        output, of_input = in_double(out[outputs]), _input_gradient(x, rows.inputs)
        return Values(output, of_input, gradients, _buffers(self.modules))


class _Reference:
    """The reference's forward, then its backward, in plain torch."""

    def __init__(self, pair: _Pair) -> None:
        self.rows, self.layers = pair.rows, pair.reference
        for name, module in pair.modules.items():
            self.layers[name].load_state_dict(module.state_dict())
        _zero_gradients(self.layers)
        self.x = _leaf(pair, self.rows.reference_x)
        self.statistics = RunningStatistics()
        self.statistics.follow(self.layers, pair.rows.repeats)
        with torch.enable_grad(), plain_torch():
            self.output = _through(self.layers, self.x, self.rows.reference_context)

    def backward(self, upstream: Tensor) -> Values:
        """What the layers should give with this upstream gradient."""
        rows = self.rows
        if self.output.requires_grad:
            with plain_torch():
                backward(self.output, upstream)
        buffers = _buffers(self.layers)
        self.statistics.move(buffers)
        parameters = parameters_of(self.layers)
        gradients = {name: _gradient(p) * rows.repeats for name, p in parameters.items()}
        output = self.output.detach()[rows.reference_outputs]
        of_input = _input_gradient(self.x, rows.reference_inputs)
        return Values(output, of_input, gradients, buffers)


def _leaf(pair: _Pair, x: Any) -> Any:
    """The input, which needs a gradient unless it is the model's own."""
    is_data = pair.layers.takes_data or not isinstance(x, Tensor)
    return x if is_data else x.detach().requires_grad_()


def _through(layers: Layers, x: Any, context: Context) -> Tensor:
    for layer in layers.values():
        x = layer(x, context)
    out: Tensor = x if isinstance(x, Tensor) else x.to_dense()
    return out


def _zero_gradients(layers: Layers) -> None:
    for parameter in parameters_of(layers).values():
        parameter.grad = torch.zeros_like(parameter)


def _buffers(layers: Layers) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": in_double(buffer)
        for name, layer in layers.items()
        for key, buffer in layer.named_buffers()
    }


def _input_gradient(x: Any, rows: Tensor) -> Tensor | None:
    if not (isinstance(x, Tensor) and x.requires_grad):
        return None
    return in_double(_gradient(x)[rows.to(x.device)])


def _without_equal_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """The input with noise of a hundredth of its size, the same for all numbers of a row.

    Libraries divide the gradient of a maximum between equal neighbours, our layers give it to the
    first of them.
    """
    noise = torch.randn(len(x), generator=generator).to(x).view(-1, *[1] * (x.ndim - 1))
    return x + 0.01 * x.std() * noise


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


@torch.no_grad()
def _change_parameters(layers: Layers, generator: torch.Generator) -> None:
    for parameter in parameters_of(layers).values():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.add_(noise, alpha=OTHER_PARAMETERS * max(float(parameter.abs().mean()), 0.01))
