"""One layer at its real shape, forward and backward, compared with its reference form in float64.

Every comparison is of a copy in training mode. The measured layer stays as it is.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gnnhpc.engines.backward import backward
from gnnhpc.kernels import calls
from gnnhpc.validation.layers.compared_rows import ComparedRows, compared_rows
from gnnhpc.validation.layers.differences import (
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
from gnnhpc.validation.reference.convolutions import SageMax
from gnnhpc.validation.reference.forward_pass import RunningStatistics, SparseFeatures
from gnnhpc.validation.reference.layer import ReferenceLayer

REPETITIONS = 3
"""With other parameters, where gradients differ."""
OTHER_PARAMETERS = 1e-3
"""How far they are from the run's, relative to these."""
ALMOST_ZERO = 1e-12
"""The upstream gradient of rows that are not compared. Code that leaves out rows without a gradient
does not leave out these, and they change no gradient by as much as rounding does."""


def compare_layer(
    layers: ComparedLayers,
    forms: Sequence[ReferenceLayer],
    given: LayerInput,
    when: When,
    generator: torch.Generator,
) -> Comparison:
    """Compare the layers with their reference `forms` on an input that they get in training.

    A number just before a ReLU may be within rounding of 0, so that single precision chooses
    another slope than double. Gradients that differ are therefore computed again with parameters
    that differ a little from the run's: a mistake stays where it is, such a number does not.
    """
    modules = [copy.deepcopy(layer).train() for layer in layers.layers]
    implementation = implementation_of(modules[-1], {})
    if implementation in LIBRARIES.values() and any(isinstance(form, SageMax) for form in forms):
        given = _without_equal_numbers(given, generator)
    rows = compared_rows(layers, given, generator)
    if not len(rows.outputs):
        return Comparison(implementation, 0.0, 0.0)
    differences, functions, finite = _differences(layers, modules, forms, rows, when, generator)
    implementation = implementation_of(modules[-1], functions)
    if not finite:
        return Comparison(implementation, math.nan, rows.share, finite=False)
    for _ in range(REPETITIONS):
        if not _gradients_differ(differences) or not differences.gradients:
            break
        _change_parameters(modules, generator)
        others, _, _ = _differences(layers, modules, forms, rows, when, generator)
        differences = _smaller_gradients(differences, others)
    return Comparison.of(implementation, differences, rows.share, rows.outputs, rows.inputs)


def _differences(
    layers: ComparedLayers,
    modules: Sequence[nn.Module],
    forms: Sequence[ReferenceLayer],
    rows: ComparedRows,
    when: When,
    generator: torch.Generator,
) -> tuple[Values, Counter[tuple[str, str]], bool]:
    """Relative differences, which of our functions ran, and whether all numbers are finite."""
    before = {name: in_double(b) for m in modules for name, b in m.named_buffers()}
    reference = _Reference(layers, modules, forms, rows)
    few = torch.zeros(reference.output.shape)
    chosen = rows.reference_outputs.unique()
    few[chosen] = torch.randn(len(chosen), *few.shape[1:], generator=generator)
    counted = calls.counted()
    found = _forward_backward(modules, rows, few, takes_data=layers.takes_data, when=when)
    functions = calls.counted() - counted
    expected = reference.backward(few.double())
    return relative_differences(found, expected, before), functions, expected.is_finite


def _forward_backward(
    modules: Sequence[nn.Module],
    rows: ComparedRows,
    few: Tensor,
    *,
    takes_data: bool,
    when: When,
) -> Values:
    """The layers on all rows. `few` is the upstream gradient of the reference form's output."""
    x = rows.x
    if isinstance(x, Tensor) and not takes_data:
        x = x.detach().requires_grad_()
    parameters = {name: p for m in modules for name, p in m.named_parameters()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    with torch.enable_grad():
        out = x
        for module in modules:
            out = module(out, rows.context)
        out = out if isinstance(out, Tensor) else out.to_dense()
        if out.requires_grad:
            upstream = torch.full_like(out, ALMOST_ZERO if when == "start" else 0.0)
            upstream[rows.outputs.to(out.device)] = few[rows.reference_outputs].to(upstream)
            backward(out, upstream)
    for module in modules:
        _end_minibatch(module)
    input_gradient = others = None
    if isinstance(x, Tensor) and x.requires_grad:
        gradient, there = _gradient(x), rows.inputs.to(x.device)
        input_gradient = in_double(gradient[there])
        others = in_double(torch.linalg.vector_norm(gradient.index_fill_(0, there, 0.0), torch.inf))
    return Values(
        in_double(out[rows.outputs.to(out.device)]),
        input_gradient,
        others,
        {name: in_double(_gradient(p)) for name, p in parameters.items()},
        {name: in_double(b) for m in modules for name, b in m.named_buffers()},
    )


def _without_equal_numbers(given: LayerInput, generator: torch.Generator) -> LayerInput:
    """The input with noise of a hundredth of its size.

    Libraries divide the gradient of a maximum between equal neighbours, the reference form gives it
    to the first of them.
    """
    if not isinstance(given.x, Tensor):
        return given
    noise = torch.randn(given.x.shape, generator=generator).to(given.x)
    return dataclasses.replace(given, x=given.x + 0.01 * given.x.std() * noise)


def _end_minibatch(layer: nn.Module) -> None:
    """BatchNorm's deferred statistics move at a mini-batch's end."""
    for module in layer.modules():
        end = getattr(module, "end_minibatch", None)
        if end is not None:
            end()


class _Reference:
    """The reference form's forward, then its backward."""

    def __init__(
        self,
        layers: ComparedLayers,
        modules: Sequence[nn.Module],
        forms: Sequence[ReferenceLayer],
        rows: ComparedRows,
    ) -> None:
        self.rows = rows
        self.parameters = {
            name: in_double(p).requires_grad_()
            for module in modules
            for name, p in module.named_parameters()
        }
        self.x = rows.reference_x
        if isinstance(self.x, Tensor) and not layers.takes_data:
            self.x = self.x.detach().requires_grad_()
        self.statistics = {
            norm: _statistics(module.get_submodule(norm.removeprefix(f"{spec.name}.")))
            for spec, module, form in zip(layers.specs, modules, forms, strict=True)
            for norm in form.norms()
        }
        self.prefix = f"{layers.specs[-1].name}."
        scene = dataclasses.replace(rows.scene, statistics=self.statistics)
        out: Tensor | SparseFeatures = self.x
        with torch.enable_grad():
            for form in forms:
                out = form.forward(out, self.parameters, scene)
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
        for norm, statistics in self.statistics.items():
            statistics.pending = [
                (mean, variance, rows * self.rows.repeats)
                for mean, variance, rows in statistics.pending
            ]
            statistics.move()
            name = norm.removeprefix(self.prefix)
            moved[f"{name}.running_mean"] = statistics.mean
            moved[f"{name}.running_var"] = statistics.variance
            moved[f"{name}.num_batches_tracked"] = torch.tensor(float(statistics.batches))
        return moved


def _statistics(norm: nn.Module) -> RunningStatistics:
    buffers = dict(norm.named_buffers())
    return RunningStatistics(
        in_double(buffers["running_mean"]),
        in_double(buffers["running_var"]),
        int(buffers["num_batches_tracked"]),
    )


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def _gradients_differ(differences: Values) -> bool:
    gradients = [*differences.gradients.values()]
    if differences.input_gradient is not None:
        gradients.append(differences.input_gradient)
    return any(largest_of(each) > TOLERANCE for each in gradients)


def _smaller_gradients(one: Values, other: Values) -> Values:
    """Of each number of a gradient the smaller difference: what is wrong is so in both."""
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
