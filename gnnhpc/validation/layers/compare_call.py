"""A call that computes several layers, compared with the same layers called one by one.

Each kind of layer is compared with its reference form by itself. What is left is how a call
connects layers: what lies between them, their gradients and running statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gnnhpc.kernels import calls
from gnnhpc.models.one_call import InOneCall, OneCall
from gnnhpc.validation.layers.differences import (
    Comparison,
    Values,
    implementation_of,
    in_double,
    relative_differences,
)
from gnnhpc.validation.layers.layer_inputs import ComparedLayers, LayerInput


def compare_call(
    layers: ComparedLayers, given: LayerInput, generator: torch.Generator
) -> Comparison | None:
    """Compare one call of the layers with calls of each; None where no call computes this input."""
    x = given.x
    assert isinstance(x, Tensor)
    together, single = (
        [copy.deepcopy(layer).train() for layer in layers.layers] for _ in range(2)
    )
    for parameter in (p for layer in (*together, *single) for p in layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    kind = cast(type[InOneCall], type(together[0]))
    call = kind.prepare_call(together, microbatches=1)
    if call is None or not call.takes(x):
        return None
    before = _buffers(layers, single)

    def one_by_one(x: Tensor) -> list[Tensor]:
        outputs = []
        for layer in single:
            x = layer(x, given.context)
            outputs.append(x)
        return outputs

    def at_once(x: Tensor) -> list[Tensor]:
        outputs = cast(OneCall, call).forward(x, lambda *_: None)
        return [*outputs.between(), outputs.last]

    shape = (len(x), *layers.specs[-1].shape)
    upstream = torch.randn(shape, generator=generator).to(x)
    expected = _values(layers, single, one_by_one, x, upstream)
    counted = calls.counted()
    found = _values(layers, together, at_once, x, upstream)
    call.end()
    functions = calls.counted() - counted
    implementation = implementation_of(together[-1], functions)
    if not expected.is_finite:
        return Comparison(implementation, 0.0, 0.0, finite=False)
    return Comparison.of(implementation, relative_differences(found, expected, before), 1.0)


def _values(
    layers: ComparedLayers,
    modules: Sequence[nn.Module],
    forward: Callable[[Tensor], list[Tensor]],
    x: Tensor,
    upstream: Tensor,
) -> Values:
    """Outputs of all layers side by side, and the gradients of the last one's."""
    x = x.detach().requires_grad_(not layers.takes_data)
    with torch.enable_grad():
        outputs = forward(x)
        outputs[-1].backward(upstream)
    gradients = {
        f"{spec.name}.{name}": torch.zeros_like(p) if p.grad is None else p.grad
        for spec, module in zip(layers.specs, modules, strict=True)
        for name, p in module.named_parameters()
    }
    flat = torch.cat([out.detach().flatten(1) for out in outputs], 1)
    return Values(
        in_double(flat),
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
