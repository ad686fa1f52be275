"""Layers at their real shape, forward and backward, compared with their forms in float64.

Every comparison is of a copy in training mode. The measured layers stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnnhpc.engines.engine import backward
from gnnhpc.kernels.compile import counted_calls
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.validation.layers.compared_rows import ComparedRows, compared_rows
from gnnhpc.validation.layers.layer_differences import (
    LIBRARIES,
    TOLERANCE,
    Comparison,
    Values,
    implementation_of,
    in_double,
    largest_of,
    relative_differences,
)
from gnnhpc.validation.layers.layer_inputs import ComparedLayers, LayerInput, When
from gnnhpc.validation.reference.edge_lists import Activation
from gnnhpc.validation.reference.layer_forms import LayerForm
from gnnhpc.validation.reference.layer_parts import RunningStatistics

REPETITIONS = 3
"""Repetitions with other parameters, where gradients differ."""
OTHER_PARAMETERS = 1e-3
"""How far they are from the run's, relative to these."""
ALMOST_ZERO = 1e-12
"""The upstream gradient of rows that are not compared. Code that leaves out rows without a gradient
does not leave out these, and they change no gradient by as much as rounding does."""


def compare_layer(
    layers: ComparedLayers,
    forms: Sequence[LayerForm],
    given: LayerInput,
    when: When,
    generator: torch.Generator,
) -> Comparison | None:
    """Compare layers with their `forms` on an input that they get in training.

    None for a stack that does not compute this input in one call.

    A number just before a ReLU may be within rounding of 0, so that single precision chooses
    another slope than double. Gradients that differ are therefore recomputed with parameters
    that differ a little from the run's: a mistake stays where it is, such a number does not.
    """
    modules = [copy.deepcopy(layer).train() for layer in layers.layers]
    implementation = implementation_of(modules[-1], {})
    if layers.takes_maximum and implementation in LIBRARIES.values():
        given = _without_equal_numbers(given, generator)
    rows = compared_rows(layers, given, generator)
    if not len(rows.outputs):
        return Comparison(implementation, 0.0, 0.0)
    pair = _Pair(layers, modules, forms, rows)
    found = pair.differences(when, generator)
    if found is None:
        return None
    differences, functions, finite = found
    implementation = implementation_of(modules[-1], functions)
    if not finite:
        return Comparison(implementation, math.nan, rows.share, finite=False)
    for _ in range(REPETITIONS):
        if not _gradients_differ(differences) or not differences.gradients:
            break
        _change_parameters(modules, generator)
        again = pair.differences(when, generator)
        if again is not None:
            differences = _smaller_gradients(differences, again[0])
    return Comparison.of(implementation, differences, rows.share, rows.outputs, rows.inputs)


@dataclass(frozen=True)
class _Pair:
    """Copies of the layers, and their forms."""

    layers: ComparedLayers
    modules: Sequence[nn.Module]
    forms: Sequence[LayerForm]
    rows: ComparedRows

    def differences(
        self, when: When, generator: torch.Generator
    ) -> tuple[Values, Counter[tuple[str, str]], bool] | None:
        """Relative differences, which of our functions ran, and whether all numbers are finite."""
        before, rows = self._buffers(), self.rows
        reference = _Reference(self)
        few = torch.zeros(reference.output.shape)
        chosen = rows.reference_outputs.unique()
        few[chosen] = torch.randn(len(chosen), *few.shape[1:], generator=generator)
        counted = counted_calls()
        found = self._forward_backward(few, ALMOST_ZERO if when == "start" else 0.0)
        if found is None:
            return None
        functions = counted_calls() - counted
        expected = reference.backward(few.double())
        return relative_differences(found, expected, before), functions, expected.is_finite

    def _forward_backward(self, few: Tensor, elsewhere: float) -> Values | None:
        """The layers on all rows.

        `few` is the upstream gradient of the form's output, `elsewhere` that of all other rows.
        """
        rows = self.rows
        x = rows.x
        if isinstance(x, Tensor) and not self.layers.takes_data:
            x = x.detach().requires_grad_()
        parameters = self.parameters()
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        with torch.enable_grad():
            out = self._forward(x)
            if out is None:
                return None
            out = out if isinstance(out, Tensor) else out.to_dense()
            if out.requires_grad:
                upstream = torch.full_like(out, elsewhere)
                upstream[rows.outputs.to(out.device)] = few[rows.reference_outputs].to(upstream)
                backward(out, upstream)
        for module in (m for layer in self.modules for m in layer.modules()):
            # BatchNorm's deferred statistics move at a mini-batch's end.
            getattr(module, "end_minibatch", lambda: None)()
        input_gradient = others = None
        if isinstance(x, Tensor) and x.requires_grad:
            gradient, there = _gradient(x), rows.inputs.to(x.device)
            input_gradient = in_double(gradient[there])
            rest = gradient.index_fill_(0, there, 0.0)
            others = in_double(torch.linalg.vector_norm(rest, torch.inf))
        return Values(
            in_double(out[rows.outputs.to(out.device)]),
            input_gradient,
            others,
            {name: in_double(_gradient(p)) for name, p in parameters.items()},
            self._buffers(),
        )

    def _forward(self, x: Any) -> Any:
        if self.layers.in_one_call:
            return stacks_of(self.modules)[0](x)
        for module in self.modules:
            x = module(x, self.rows.context)
        return x

    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._named("named_parameters"))

    def _buffers(self) -> dict[str, Tensor]:
        return {name: in_double(buffer) for name, buffer in self._named("named_buffers")}

    def _named(self, what: str) -> Iterator[tuple[str, Any]]:
        """All tensors by full name."""
        for spec, module in zip(self.layers.specs, self.modules, strict=True):
            for name, tensor in getattr(module, what)():
                yield f"{spec.name}.{name}", tensor

    def statistics(self) -> dict[str, RunningStatistics]:
        buffers = self._buffers()
        norms = [n.removesuffix(".running_mean") for n in buffers if n.endswith(".running_mean")]
        return {
            norm: RunningStatistics(
                buffers[f"{norm}.running_mean"],
                buffers[f"{norm}.running_var"],
                int(buffers[f"{norm}.num_batches_tracked"]),
            )
            for norm in norms
        }


class _Reference:
    """The forms' forward, then their backward."""

    def __init__(self, pair: _Pair) -> None:
        self.rows = pair.rows
        self.parameters = {n: in_double(p).requires_grad_() for n, p in pair.parameters().items()}
        self.x = pair.rows.reference_x
        if isinstance(self.x, Tensor) and not pair.layers.takes_data:
            self.x = self.x.detach().requires_grad_()
        self.statistics = pair.statistics()
        scene = dataclasses.replace(pair.rows.scene, statistics=self.statistics)
        out: Activation = self.x
        with torch.enable_grad():
            for spec, form in zip(pair.layers.specs, pair.forms, strict=True):
                start = f"{spec.name}."
                mine = {
                    name.removeprefix(start): p
                    for name, p in self.parameters.items()
                    if name.startswith(start)
                }
                out = form(out, mine, scene)
            self.output = out if isinstance(out, Tensor) else out.to_dense()

    def backward(self, few: Tensor) -> Values:
        """What the layers should give with the upstream gradient `few`."""
        if self.output.requires_grad:
            backward(self.output, few)
        input_gradient = None
        if isinstance(self.x, Tensor) and self.x.requires_grad:
            input_gradient = _gradient(self.x)[self.rows.reference_inputs]
        return Values(
            self.output.detach()[self.rows.reference_outputs],
            input_gradient,
            None if input_gradient is None else torch.zeros(()),
            {name: _gradient(p) * self.rows.repeats for name, p in self.parameters.items()},
            self._buffers(),
        )

    def _buffers(self) -> dict[str, Tensor]:
        """Running statistics, moved by as many rows as the layer has."""
        moved = {}
        for name, statistics in self.statistics.items():
            statistics.pending = [
                (mean, variance, rows * self.rows.repeats)
                for mean, variance, rows in statistics.pending
            ]
            statistics.move()
            moved[f"{name}.running_mean"] = statistics.mean
            moved[f"{name}.running_var"] = statistics.variance
            moved[f"{name}.num_batches_tracked"] = torch.tensor(float(statistics.batches))
        return moved


def _without_equal_numbers(given: LayerInput, generator: torch.Generator) -> LayerInput:
    """The input with noise of a hundredth of its size.

    Libraries divide the gradient of a maximum between equal neighbours, the form gives it to the
    first of them.
    """
    if not isinstance(given.x, Tensor):
        return given
    noise = torch.randn(given.x.shape, generator=generator).to(given.x)
    return dataclasses.replace(given, x=given.x + 0.01 * given.x.std() * noise)


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def _gradients_differ(differences: Values) -> bool:
    gradients = [*differences.gradients.values()]
    if differences.input_gradient is not None:
        gradients.append(differences.input_gradient)
    return any(largest_of(each) > TOLERANCE for each in gradients)


def _smaller_gradients(one: Values, other: Values) -> Values:
    """The smaller difference of each number of a gradient; a wrong one differs in both."""
    input_gradient = one.input_gradient
    if input_gradient is not None and other.input_gradient is not None:
        input_gradient = torch.fmin(input_gradient, other.input_gradient)
    gradients = {
        name: torch.fmin(gradient, other.gradients[name])
        for name, gradient in one.gradients.items()
    }
    return dataclasses.replace(one, input_gradient=input_gradient, gradients=gradients)


@torch.no_grad()
def _change_parameters(modules: Sequence[nn.Module], generator: torch.Generator) -> None:
    for parameter in (p for module in modules for p in module.parameters()):
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.add_(noise, alpha=OTHER_PARAMETERS * max(float(parameter.abs().mean()), 0.01))
