"""Layers at their real shape, forward and backward, compared with plain torch in float64.

Every comparison is of a copy in training mode. The measured layers stay as they are.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines.engine import backward
from gnnhpc.kernels.compile import counted_calls
from gnnhpc.kernels.dispatch import plain_torch
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.models.model import Context
from gnnhpc.validation.layers.compared_rows import ComparedRows, compared_rows
from gnnhpc.validation.layers.layer_differences import (
    GRADIENT_OF,
    INPUT_GRADIENT,
    OUTPUT,
    Comparison,
    Values,
    gradients_differ,
    implementation_of,
    in_double,
    relative_differences,
    smaller_gradients,
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
        if not gradients_differ(differences):
            break
        _change_parameters(modules, generator)
        again = pair.differences(generator)
        if again is not None:
            differences = smaller_gradients(differences, again[0])
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
        rows, before, counted = self.rows, _buffers(self.modules), counted_calls()
        for name, module in self.modules.items():
            self.reference[name].load_state_dict(module.state_dict())
        statistics = RunningStatistics()
        statistics.follow(self.reference, rows.repeats)
        with plain_torch():
            expected_x = self._leaf(rows.reference_x)
            expected_out = _through(self.reference, expected_x, rows.reference_context)
        upstream = torch.zeros(expected_out.shape)
        chosen = rows.reference_outputs.unique()
        upstream[chosen] = torch.randn(len(chosen), *upstream.shape[1:], generator=generator)
        x = self._leaf(rows.x)
        out = self._measured_output(x)
        if out is None:
            return None
        gradient = torch.zeros_like(out)
        gradient[rows.outputs.to(out.device)] = upstream[rows.reference_outputs].to(out)
        found = _values(self.modules, x, out, gradient, rows.outputs, rows.inputs)
        functions = counted_calls() - counted
        with plain_torch():
            places = rows.reference_outputs, rows.reference_inputs
            expected = _values(self.reference, expected_x, expected_out, upstream.double(), *places)
        statistics.move(expected)
        for name in expected:
            if name.startswith(GRADIENT_OF):
                expected[name] *= rows.repeats
        is_finite = all(bool(value.isfinite().all()) for value in expected.values())
        return relative_differences(found, expected, before), functions, is_finite

    def _leaf(self, x: Any) -> Any:
        """The input, which needs a gradient unless it is the model's own."""
        is_data = self.layers.takes_data or not isinstance(x, Tensor)
        return x if is_data else x.detach().requires_grad_()

    def _measured_output(self, x: Any) -> Tensor | None:
        """What the layers give on all rows, and the end of their mini-batch."""
        if self.layers.in_one_call:
            _zero_gradients(self.modules)
            return stacks_of(list(self.modules.values()))[0](x)
        out = _through(self.modules, x, self.rows.context)
        for module in (m for layer in self.modules.values() for m in layer.modules()):
            # BatchNorm's deferred statistics move then.
            getattr(module, "end_minibatch", lambda: None)()
        return out


def _through(layers: Layers, x: Any, context: Context) -> Tensor:
    _zero_gradients(layers)
    for layer in layers.values():
        x = layer(x, context)
    out: Tensor = x if isinstance(x, Tensor) else x.to_dense()
    return out


def _zero_gradients(layers: Layers) -> None:
    for parameter in parameters_of(layers).values():
        parameter.grad = torch.zeros_like(parameter)


def _values(
    layers: Layers, x: Any, out: Tensor, upstream: Tensor, outputs: Tensor, inputs: Tensor
) -> Values:
    """What layers give on an input with this gradient of their output, in these rows of both."""
    if out.requires_grad:
        backward(out, upstream)
    found = {OUTPUT: in_double(out[outputs.to(out.device)])} | _buffers(layers)
    if isinstance(x, Tensor) and x.requires_grad:
        found[INPUT_GRADIENT] = in_double(_gradient(x)[inputs.to(x.device)])
    for name, parameter in parameters_of(layers).items():
        found[GRADIENT_OF + name] = in_double(_gradient(parameter))
    return found


def _buffers(layers: Layers) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": in_double(buffer)
        for name, layer in layers.items()
        for key, buffer in layer.named_buffers()
    }


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


@torch.no_grad()
def _change_parameters(layers: Layers, generator: torch.Generator) -> None:
    for parameter in parameters_of(layers).values():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.add_(noise, alpha=OTHER_PARAMETERS * max(float(parameter.abs().mean()), 0.01))
