"""Gives a module's buffers what another module of the same layers holds in its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


@torch.no_grad()
def set_buffers(module: nn.Module, held: Mapping[str, Tensor]) -> None:
    """In place where shape and kind of number are alike: a forward may have made a buffer, or
    another one, and may have dropped it.

    `held` is by name, all names of a buffer that has several.
    """
    done: dict[int, Tensor] = {}
    for place, child in module.named_modules():
        start = f"{place}." if place else ""
        for name, buffer in [*child._buffers.items()]:
            value = held.get(f"{start}{name}")
            if value is None:
                child._buffers[name] = None
                continue
            if buffer is None or id(buffer) not in done:
                given = _with_value(buffer, value)
                done |= {} if buffer is None else {id(buffer): given}
            else:
                given = done[id(buffer)]
            child._buffers[name] = given
        for path, value in held.items():
            name = path.removeprefix(start)
            if path == start + name and "." not in name and name not in child._buffers:
                vars(child).pop(name, None)
                child.register_buffer(name, value.clone())


def _with_value(buffer: Tensor | None, value: Tensor) -> Tensor:
    if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
        device = value.device if buffer is None else buffer.device
        return value.detach().to(device, copy=True)
    return buffer.copy_(value)
