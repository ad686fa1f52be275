"""Relative differences between what a layer gives and what it should give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

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
LIBRARIES = {"pyg_layers": "PyG", "reference": "PyG", "dgl_layers": "DGL"}
"""Their names, by the file in which a model has its layers of that library."""


Values = dict[str, Tensor]
"""What a forward and a backward give, float64 on the CPU, by its name in a verdict: the output, the
input's gradient unless the input is data, the gradient of each parameter, each buffer. Or relative
differences of these: [rows] for output and input, of each number for the others."""


def gradients_differ(differences: Values) -> bool:
    """Whether a gradient differs where other parameters may show why."""
    gradients = {name: each for name, each in differences.items() if _is_gradient(name)}
    has_parameters = any(name != INPUT_GRADIENT for name in gradients)
    return has_parameters and any(largest_of(each) > TOLERANCE for each in gradients.values())


def smaller_gradients(one: Values, other: Values) -> Values:
    """The smaller difference of each number of a gradient; a wrong one differs in both."""
    return {
        name: torch.fmin(each, other[name]) if _is_gradient(name) else each
        for name, each in one.items()
    }


def _is_gradient(name: str) -> bool:
    return name == INPUT_GRADIENT or name.startswith(GRADIENT_OF)


@dataclass(frozen=True)
class Comparison:
    """How far a layer is from what it is compared with."""

    implementation: str
    """The implementation that computed the layer."""
    worst: float
    """The largest relative difference."""
    share: float
    """Share of the layer's rows, or images, that were compared."""
    wrong: Sequence[str] = field(default_factory=list)
    """What differs by more than the tolerance, where and by how much."""
    finite: bool = True
    """Whether there are numbers to compare with. A run that diverged has none."""

    @classmethod
    def of(
        cls,
        implementation: str,
        differences: Values,
        share: float,
        outputs: Tensor,
        inputs: Tensor,
    ) -> Comparison:
        """Judge differences of some rows of a layer: `outputs` int64 [n] and `inputs` int64 [m]."""
        worst, wrong = 0.0, []
        compared = {OUTPUT: outputs, INPUT_GRADIENT: inputs}
        for name, relative in differences.items():
            largest = largest_of(relative)
            worst = max(worst, largest)
            if largest > TOLERANCE:
                place = ""
                if name in compared:
                    row = int(relative.nan_to_num(nan=math.inf).argmax())
                    place = f" in row {int(compared[name][row])}"
                wrong.append(f"{name}{place} by {largest:.1e}")
        return cls(implementation, worst, share, wrong)


def relative_differences(found: Values, expected: Values, before: Mapping[str, Tensor]) -> Values:
    """Differences over what is expected. `before` has the buffers from which both began.

    A number that is small among those of its tensor is compared with a usual one of them. A
    parameter that changes nothing, as a bias before a BatchNorm, has a gradient of rounding errors:
    it is compared with the gradients of the other parameters. One that changes hardly anything is
    compared with a small share of these. So is the input's gradient, of which single precision has
    nothing left where all units of a readout are far below zero.
    """
    gradients = [each for name, each in expected.items() if name.startswith(GRADIENT_OF)]
    largest = max(map(_usual, gradients), default=0.0)

    def relative(name: str, actual: Tensor, value: Tensor) -> Tensor:
        if name == OUTPUT:
            return _of_rows(actual, value, 0.0)
        if name == INPUT_GRADIENT:
            return _of_rows(actual, value, NOTHING * largest)
        if name.startswith(GRADIENT_OF):
            is_nothing = _usual(value) < NOTHING * largest
            return _of_numbers(actual, value, largest * (1.0 if is_nothing else CANCELLED))
        return _of_moves(actual, value, before[name])

    return {name: relative(name, found[name], value) for name, value in expected.items()}


def in_double(x: Tensor) -> Tensor:
    """A copy in float64 on the CPU."""
    return x.detach().to("cpu", torch.float64, copy=True)


def largest_of(relative: Tensor) -> float:
    """The largest difference; infinite for what is no number."""
    return float(relative.nan_to_num(nan=math.inf).max()) if relative.numel() else 0.0


def implementation_of(layer: nn.Module, functions: Mapping[tuple[str, str], int]) -> str:
    """The implementation of a layer: a library's, or this project's in C++, Triton or torch."""
    library = LIBRARIES.get(type(layer).__module__.rpartition(".")[2])
    if library is not None:
        return library
    languages = {"Triton" if code == "triton" else "C++" for code, _ in functions}
    return " and ".join(sorted(languages)) or "torch"


def _of_rows(found: Tensor, expected: Tensor, least: float) -> Tensor:
    """[rows]: each row's largest difference over its largest number."""
    difference = (found - expected).abs().flatten(1).amax(1)
    size = expected.abs().flatten(1).amax(1).clamp(min=max(_usual(expected), least, _TINY))
    return difference / size


def _of_numbers(found: Tensor, expected: Tensor, least: float) -> Tensor:
    return (found - expected).abs() / expected.abs().clamp(min=max(_usual(expected), least, _TINY))


def _of_moves(found: Tensor, expected: Tensor, before: Tensor) -> Tensor:
    """The move of running statistics, as far as their precision shows it."""
    return _of_numbers(found - before, expected - before, 0.01 * _usual(expected))


def _usual(x: Tensor) -> float:
    """The root of the mean square of the numbers that are not zero."""
    count = int(x.count_nonzero())
    return float(x.square().sum().div(count).sqrt()) if count else 0.0
