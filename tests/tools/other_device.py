"""A CPU in the place of another device: what was moved there is no array until it comes back.

`torch.device` names the device of the ranks; checks bring tensors back by `.cpu()` or `.to("cpu")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_to = Tensor.to


class There(Tensor):
    """A tensor on that device, and so is what is computed with it."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("numpy", "__array__"):
            raise TypeError("can't convert another device's tensor to numpy")
        found = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        back = name == "cpu" or (name == "to" and "cpu" in [a for a in args if type(a) is str])
        return found.as_subclass(Tensor) if back else found


def to(self: Tensor, *args: Any, **named: Any) -> Tensor:
    """In the place of `Tensor.to`, by whose name torch looks it up."""
    found = _to(self, *args, **named)
    there = any(type(each) is torch.device for each in args)
    plain = type(found) is Tensor and not isinstance(self, nn.Parameter)
    return found.as_subclass(There) if there and plain else found


def emulate() -> None:
    """From now on, in this process."""
    Tensor.to = to  # type: ignore[method-assign, assignment]
