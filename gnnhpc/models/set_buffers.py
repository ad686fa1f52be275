"""Gives a module's buffers what another module of the same layers holds in its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


@torch.no_grad()
def set_buffers(
    module: nn.Module, held: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> None:
    """In place where shapes are alike; a forward may have made a buffer, or one of another shape.

    `held` is by name. Floating point numbers of buffers that were None are of `dtype`, or as held.
    Raises KeyError where the module has a buffer that is not held.
    """
    done: dict[int, tuple[Tensor, Tensor]] = {}
    for place, child in module.named_modules():
        for name, buffer in [*child._buffers.items()]:
            path = f"{place}.{name}" if place else name
            if buffer is None:
                if path in held:
                    value = held[path]
                    kind = dtype if value.is_floating_point() else None
                    setattr(child, name, value.detach().to(kind or value.dtype, copy=True))
                continue
            # One buffer may have several names, of which the first is held.
            if id(buffer) not in done:
                done[id(buffer)] = buffer, _with_value(buffer, held[path])
            if done[id(buffer)][1] is not buffer:
                setattr(child, name, done[id(buffer)][1])


def _with_value(buffer: Tensor, value: Tensor) -> Tensor:
    if buffer.shape == value.shape:
        return buffer.copy_(value)
    return value.detach().to(buffer.device, buffer.dtype, copy=True)
