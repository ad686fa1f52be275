"""Layers at their real shape, forward and backward, compared with their forms in float64.

Every comparison is of a copy in training mode. The measured layers stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnnhpc.engines.engine import backward
from gnnhpc.kernels.compile import counted_calls
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
from gnnhpc.validation.reference.edge_lists import Activation
from gnnhpc.validation.reference.layer_forms import LayerForm
from gnnhpc.validation.reference.layer_parts import parameters_of_layer, statistics_of

REPETITIONS = 3
"""Repetitions with other parameters, where gradients differ."""
OTHER_PARAMETERS = 1e-3
"""How far they are from the run's, relative to these."""


def compare_layer(
    layers: ComparedLayers,
    forms: Sequence[LayerForm],
    given: LayerInput,
    generator: torch.Generator,
) -> Comparison | None:
    """Compare layers with their `forms` on an input that they get in training.

    None for a stack that does not compute this input in one call.

    A number just before a ReLU may be within rounding of 0, so that single precision chooses
    another slope than double. Gradients that differ are therefore recomputed with parameters
    that differ a little from the run's: a mistake stays where it is, such a number does not.
    """
    modules = [copy.deepcopy(layer).train() for layer in layers.layers]
    if isinstance(given.x, Tensor) and not layers.takes_data:
        given = dataclasses.replace(given, x=_without_equal_rows(given.x, generator))
    rows = compared_rows(layers, given, generator)
    if not len(rows.outputs):
        return Comparison(implementation_of(modules[-1], {}), 0.0, 0.0)
    pair = _Pair(layers, modules, forms, rows)
    found = pair.differences(generator)
    if found is None:
        return None
    differences, functions, finite = found
    implementation = implementation_of(modules[-1], functions)
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
    """Copies of the layers, and their forms."""

    layers: ComparedLayers
    modules: Sequence[nn.Module]
    forms: Sequence[LayerForm]
    rows: ComparedRows

    def differences(
        self, generator: torch.Generator
    ) -> tuple[Values, Counter[tuple[str, str]], bool] | None:
        """Relative differences, which of our functions ran, and whether all numbers are finite."""
        before, counted = self._buffers(), counted_calls()
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
        """What the layers give on all rows; `upstream` is the gradient of the form's output."""
        rows = self.rows
        x = rows.x
        if isinstance(x, Tensor) and not self.layers.takes_data:
            x = x.detach().requires_grad_()
        parameters = self.named("parameters")
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        with torch.enable_grad():
            out = self._forward(x)
            if out is None:
                return None
            out = out if isinstance(out, Tensor) else out.to_dense()
            outputs = rows.outputs.to(out.device)
            if out.requires_grad:
                gradient = torch.zeros_like(out)
                gradient[outputs] = upstream[rows.reference_outputs].to(out)
                backward(out, gradient)
        for module in (m for layer in self.modules for m in layer.modules()):
            # BatchNorm's deferred statistics move at a mini-batch's end.
            getattr(module, "end_minibatch", lambda: None)()
        input_gradient = None
        if isinstance(x, Tensor) and x.requires_grad:
            input_gradient = in_double(_gradient(x)[rows.inputs.to(x.device)])
        gradients = {name: in_double(_gradient(p)) for name, p in parameters.items()}
        return Values(in_double(out[outputs]), input_gradient, gradients, self._buffers())

    def _forward(self, x: Any) -> Any:
        if self.layers.in_one_call:
            return stacks_of(self.modules)[0](x)
        for module in self.modules:
            x = module(x, self.rows.context)
        return x

    def _buffers(self) -> dict[str, Tensor]:
        return {name: in_double(buffer) for name, buffer in self.named("buffers").items()}

    def named(self, what: str) -> dict[str, Any]:
        """All parameters or buffers by full name."""
        return {
            f"{spec.name}.{name}": tensor
            for spec, module in zip(self.layers.specs, self.modules, strict=True)
            for name, tensor in getattr(module, f"named_{what}")()
        }


class _Reference:
    """The forms' forward, then their backward."""

    def __init__(self, pair: _Pair) -> None:
        self.rows = pair.rows
        held = pair.named("parameters")
        self.parameters = {name: in_double(p).requires_grad_() for name, p in held.items()}
        self.x = pair.rows.reference_x
        if isinstance(self.x, Tensor) and not pair.layers.takes_data:
            self.x = self.x.detach().requires_grad_()
        buffers = {name: in_double(buffer) for name, buffer in pair.named("buffers").items()}
        self.statistics = statistics_of(buffers)
        settings = dataclasses.replace(pair.rows.settings, statistics=self.statistics)
        out: Activation = self.x
        with torch.enable_grad():
            for spec, form in zip(pair.layers.specs, pair.forms, strict=True):
                out = form(out, parameters_of_layer(self.parameters, spec.name), settings)
            self.output = out if isinstance(out, Tensor) else out.to_dense()

    def backward(self, upstream: Tensor) -> Values:
        """What the layers should give with this upstream gradient."""
        rows = self.rows
        if self.output.requires_grad:
            backward(self.output, upstream)
        input_gradient = None
        if isinstance(self.x, Tensor) and self.x.requires_grad:
            input_gradient = _gradient(self.x)[rows.reference_inputs]
        buffers: dict[str, Tensor] = {}
        for name, statistics in self.statistics.items():
            # They move by as many rows as the layer has.
            statistics.pending = [
                (m, v, count * rows.repeats) for m, v, count in statistics.pending
            ]
            statistics.move()
            buffers |= statistics.buffers(name)
        gradients = {name: _gradient(p) * rows.repeats for name, p in self.parameters.items()}
        output = self.output.detach()[rows.reference_outputs]
        return Values(output, input_gradient, gradients, buffers)


def _without_equal_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """The input with noise of a hundredth of its size, the same for all numbers of a row.

    Libraries divide the gradient of a maximum between equal neighbours, the form gives it to the
    first of them.
    """
    noise = torch.randn(len(x), generator=generator).to(x).view(-1, *[1] * (x.ndim - 1))
    return x + 0.01 * x.std() * noise


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


@torch.no_grad()
def _change_parameters(modules: Sequence[nn.Module], generator: torch.Generator) -> None:
    for parameter in (p for module in modules for p in module.parameters()):
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.add_(noise, alpha=OTHER_PARAMETERS * max(float(parameter.abs().mean()), 0.01))
