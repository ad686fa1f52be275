"""A call that computes several layers, compared with the same layers called one by one.

Each kind of layer is compared with its reference form by itself. What is left is how a call
connects layers: what lies between them, their gradients and running statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gnnhpc.engines.stage import Stage
from gnnhpc.kernels.compile import counted_calls
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.validation.layers.differences import (
    Comparison,
    Values,
    implementation_of,
    in_double,
    relative_differences,
)
from gnnhpc.validation.layers.layer_inputs import ComparedLayers, LayerInput

LAYERS = 5
"""Layers of a call that are compared: its last ones."""


def stacked_layers(stage: Stage) -> list[ComparedLayers]:
    """The last few layers of each call that computes several layers of the stage."""
    found = []
    for part in stage.virtual_stages:
        for first, stack in stacks_of(part.layers).items():
            end = first + len(stack.layers)
            few = slice(max(first, end - LAYERS), end)
            specs, layers = tuple(part.specs[few]), tuple(part.layers[few])
            found.append(ComparedLayers(specs, layers, takes_data=False))
    return found


def compare_stack(
    layers: ComparedLayers, given: LayerInput, generator: torch.Generator
) -> Comparison | None:
    """Compare one call of the layers with calls of each; None where no call computes this input."""
    x = given.x
    assert isinstance(x, Tensor)
    together, single = ([copy.deepcopy(each).train() for each in layers.layers] for _ in range(2))
    for parameter in (p for layer in (*together, *single) for p in layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    stack = stacks_of(together)[0]
    before = _buffers(layers, single)

    def one_by_one(x: Tensor) -> Tensor | None:
        for layer in single:
            x = layer(x, given.context)
        return x

    shape = (len(x), *layers.specs[-1].shape)
    upstream = torch.randn(shape, generator=generator).to(x)
    expected = _values(layers, single, one_by_one, x, upstream)
    counted = counted_calls()
    found = _values(layers, together, stack, x, upstream)
    if found is None or expected is None:
        return None
    implementation = implementation_of(together[-1], counted_calls() - counted)
    if not expected.is_finite:
        return Comparison(implementation, 0.0, 0.0, finite=False)
    return Comparison.of(implementation, relative_differences(found, expected, before), 1.0)


def _values(
    layers: ComparedLayers,
    modules: Sequence[nn.Module],
    forward: Callable[[Tensor], Tensor | None],
    x: Tensor,
    upstream: Tensor,
) -> Values | None:
    """The last layer's output, and all gradients of it; None where no call computes this input."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        output = forward(x)
        if output is None:
            return None
        output.backward(upstream)
    gradients = {
        f"{spec.name}.{name}": torch.zeros_like(p) if p.grad is None else p.grad
        for spec, module in zip(layers.specs, modules, strict=True)
        for name, p in module.named_parameters()
    }
    return Values(
        in_double(output.detach()),
        None if x.grad is None else in_double(x.grad),
        None,
        {name: in_double(gradient) for name, gradient in gradients.items()},
        _buffers(layers, modules),
    )


def _buffers(layers: ComparedLayers, modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """A copy of all buffers, by full names."""
    return {
        f"{spec.name}.{name}": in_double(buffer)
        for spec, module in zip(layers.specs, modules, strict=True)
        for name, buffer in module.named_buffers()
    }
