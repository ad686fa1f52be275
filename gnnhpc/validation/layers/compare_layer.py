"""Layers at their real shape, forward and backward, compared with plain torch in float64.

Every comparison is of a copy in training mode. The measured layers stay as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs
from gnnhpc.engines.engine import backward
from gnnhpc.kernels.dispatch import plain_torch
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.models.model import Context
from gnnhpc.validation.layers.compared_rows import (
    ALL,
    ComparedLayers,
    ComparedRows,
    Places,
    compared_rows,
)
from gnnhpc.validation.reference.fresh_layers import Layers, RunningStatistics, dense, parameters_of

TOLERANCE = 1e-3
"""Relative difference between a run's precision and float64. Single precision stays below 1e-4."""
NOTHING = 1e-9
"""A gradient in float64 that is smaller than this share of another is a rounding error."""
CANCELLED = 1e-5
"""A gradient that nearly cancels, as attention's where few nodes have several neighbours, is
compared with this share of the largest one, so that 1e-8 of that is no difference: single precision
rounds more."""
OUTPUT, INPUT_GRADIENT, GRADIENT_OF = "output", "input gradient", "gradient of "
_TINY = torch.finfo(torch.float64).tiny

Values = dict[str, Tensor]
"""What a forward and a backward give, float64 on the CPU, by its name in a verdict: the output, the
input's gradient unless the input is data, the gradient of each parameter, each buffer. Or relative
differences of these: [rows] for output and input, of each number for the others."""


def relative_differences(found: Values, expected: Values, before: Values) -> Values:
    """Differences over what is expected. `before` has the buffers from which both began.

    A number that is small among those of its tensor is compared with a usual one of them. A
    parameter that changes nothing, as a bias before a BatchNorm, has a gradient of rounding errors:
    it is compared with the gradients of the other parameters. One that changes hardly anything is
    compared with a small share of these. So is the input's gradient, of which single precision has
    nothing left where all units of a readout are far below zero.
    """
    gradients = [each for name, each in expected.items() if name.startswith(GRADIENT_OF)]
    largest = max(map(_usual, gradients), default=0.0)

    differences = {}
    for name, value in expected.items():
        actual = found[name]
        if name == OUTPUT:
            differences[name] = _of_rows(actual, value, 0.0)
        elif name == INPUT_GRADIENT:
            differences[name] = _of_rows(actual, value, NOTHING * largest)
        elif name.startswith(GRADIENT_OF):
            share = 1.0 if _usual(value) < NOTHING * largest else CANCELLED
            differences[name] = _of_numbers(actual, value, share * largest)
        else:
            # The move of running statistics, as far as their precision shows it.
            moves = actual - before[name], value - before[name]
            differences[name] = _of_numbers(*moves, 0.01 * _usual(value))
    return differences


def largest_of(relative: Tensor) -> float:
    """The largest difference; infinite for what is no number."""
    return float(relative.nan_to_num(nan=math.inf).max()) if relative.numel() else 0.0


def _of_rows(found: Tensor, expected: Tensor, least: float) -> Tensor:
    """[rows]: each row's largest difference over its largest number."""
    difference = (found - expected).abs().flatten(1).amax(1)
    size = expected.abs().flatten(1).amax(1).clamp(min=max(_usual(expected), least, _TINY))
    return difference / size


def _of_numbers(found: Tensor, expected: Tensor, least: float) -> Tensor:
    return (found - expected).abs() / expected.abs().clamp(min=max(_usual(expected), least, _TINY))


def _usual(x: Tensor) -> float:
    """The root of the mean square of the numbers that are not zero."""
    count = int(x.count_nonzero())
    return float(x.square().sum().div(count).sqrt()) if count else 0.0


REPETITIONS = 3
"""Repetitions with other parameters, where gradients differ."""
OTHER_PARAMETERS = 1e-3
"""How far they are from the run's, relative to these."""


@dataclass(frozen=True)
class Comparison:
    """How far a layer is from what it is compared with."""

    worst: float
    """The largest relative difference; NaN where a run that diverged has no numbers to compare."""
    share: float
    """Share of the layer's rows, or images, that were compared."""
    wrong: Sequence[str] = ()
    """What differs by more than the tolerance, where and by how much."""


def compare_layer(
    layers: ComparedLayers,
    reference: Layers,
    x: Inputs,
    context: Context,
    generator: torch.Generator,
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
    rows = compared_rows(layers, x, context, generator)
    if not len(rows.outputs):
        return Comparison(0.0, 0.0)
    differences: Values = {}
    for _ in range(1 + REPETITIONS):
        both = _found_and_expected(layers, modules, reference, rows, generator)
        if both is None:
            return None
        if not all(bool(value.isfinite().all()) for value in both[1].values()):
            return Comparison(math.nan, rows.share)
        for name, each in relative_differences(*both).items():
            first = differences.setdefault(name, each)
            if _is_gradient(name):
                differences[name] = torch.fmin(each, first)
        wrong = (largest_of(each) > TOLERANCE for n, each in differences.items() if _is_gradient(n))
        if not any(wrong) or not parameters_of(modules):
            break
        _change_parameters(modules, generator)
    return _judged(differences, rows)


def _is_gradient(name: str) -> bool:
    return name == INPUT_GRADIENT or name.startswith(GRADIENT_OF)


def _judged(differences: Values, rows: ComparedRows) -> Comparison:
    """What differs by more than the tolerance, and in which row of the output or input."""
    wrong = []
    compared = {OUTPUT: rows.outputs, INPUT_GRADIENT: rows.inputs}
    largest = {name: largest_of(relative) for name, relative in differences.items()}
    for name, value in largest.items():
        if value > TOLERANCE:
            place = ""
            if name in compared:
                row = int(differences[name].nan_to_num(nan=math.inf).argmax())
                place = f" in row {int(compared[name][row])}"
            wrong.append(f"{name}{place} by {value:.1e}")
    return Comparison(max(largest.values()), rows.share, wrong)


def _found_and_expected(
    layers: ComparedLayers,
    modules: Layers,
    reference: Layers,
    rows: ComparedRows,
    generator: torch.Generator,
) -> tuple[Values, Values, Values] | None:
    """What the layers give, what the reference gives, and the buffers from which both began."""
    before = _buffers(modules)
    for name, module in modules.items():
        reference[name].load_state_dict(module.state_dict())
    statistics = RunningStatistics()
    statistics.follow(reference, rows.repeats)
    x, expected_x = rows.x, rows.reference_x
    if not layers.takes_data:
        # The model's own input needs no gradient.
        assert isinstance(x, Tensor)
        assert isinstance(expected_x, Tensor)
        x, expected_x = (each.detach().requires_grad_() for each in (x, expected_x))
    with plain_torch():
        expected_out = _through(reference, expected_x, rows.reference_context)
    upstream = torch.randn(expected_out.shape, generator=generator)
    out = _measured_output(layers, modules, x, rows.context)
    if out is None:
        return None
    gradient = torch.zeros_like(out)
    gradient[rows.outputs.to(out.device)] = upstream[rows.places].to(out)
    found = _values(modules, x, out, gradient, rows.outputs, rows.inputs)
    with plain_torch():
        places = rows.places
        expected = _values(reference, expected_x, expected_out, upstream.double(), places, places)
    statistics.move(expected)
    for name in expected:
        if name.startswith(GRADIENT_OF):
            expected[name] *= rows.repeats
    return found, expected, before


def _measured_output(
    layers: ComparedLayers, modules: Layers, x: Any, context: Context
) -> Tensor | None:
    """What the layers give on all rows, and the end of their mini-batch."""
    if layers.in_one_call:
        _zero_gradients(modules)
        return stacks_of(list(modules.values()))[0](x)
    out = _through(modules, x, context)
    for module in (m for layer in modules.values() for m in layer.modules()):
        # BatchNorm's deferred statistics move then.
        getattr(module, "end_minibatch", lambda: None)()
    return out


def _through(layers: Layers, x: Any, context: Context) -> Tensor:
    _zero_gradients(layers)
    for layer in layers.values():
        x = layer(x, context)
    return dense(x)


def _zero_gradients(layers: Layers) -> None:
    for parameter in parameters_of(layers).values():
        parameter.grad = torch.zeros_like(parameter)


def _values(
    layers: Layers, x: Any, out: Tensor, upstream: Tensor, outputs: Places, inputs: Places
) -> Values:
    """What layers give on an input with this gradient of their output, in these rows of both."""
    if out.requires_grad:
        backward(out, upstream)
    found = {OUTPUT: _in_double(out, outputs)} | _buffers(layers)
    if isinstance(x, Tensor) and x.requires_grad:
        found[INPUT_GRADIENT] = _in_double(
            torch.zeros_like(x) if x.grad is None else x.grad, inputs
        )
    for name, parameter in parameters_of(layers).items():
        assert parameter.grad is not None
        found[GRADIENT_OF + name] = _in_double(parameter.grad)
    return found


def _buffers(layers: Layers) -> Values:
    return {
        f"{name}.{key}": _in_double(buffer)
        for name, layer in layers.items()
        for key, buffer in layer.named_buffers()
    }


def _in_double(x: Tensor, places: Places = ALL) -> Tensor:
    """A copy of these rows in float64 on the CPU."""
    rows = x[places.to(x.device) if isinstance(places, Tensor) else places]
    return rows.detach().to("cpu", torch.float64, copy=True)


@torch.no_grad()
def _change_parameters(layers: Layers, generator: torch.Generator) -> None:
    for parameter in parameters_of(layers).values():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.add_(noise, alpha=OTHER_PARAMETERS * max(float(parameter.abs().mean()), 0.01))
