"""A GPU that is pretended on a CPU: its tensors say that they lie there, and may meet no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("cuda", 0)
_SIZES = ("numel", "dim", "size", "stride", "element_size", "is_pinned", "__len__")


class PretendedGpu(TorchFunctionMode):
    """Within it, in one thread, what is made on `GPU` or of its tensors lies there.

    As with a real one, AssertionError where tensors of both kinds meet, but for single numbers and
    copies, and where numpy is to read one of a GPU's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._there: dict[int, Tensor] = {}

    def has(self, x: Tensor) -> bool:
        return id(x) in self._there

    def _put(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            self._there[id(x)] = x
        return x

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        given = tree_flatten((args, kwargs))[0]
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if self.has(args[0]) else torch.device("cpu")
        if func is torch.device or name in _SIZES:
            return func(*args, **kwargs)
        devices = {x.type for x in given if isinstance(x, torch.device)}
        tensors = [x for x in given if isinstance(x, Tensor)]
        here = [x for x in tensors if not self.has(x) and x.dim()]
        there = any(map(self.has, tensors))
        on_cpu = tree_map(lambda x: torch.device("cpu") if isinstance(x, torch.device) else x, args)
        options = {key: torch.device("cpu") if key == "device" else x for key, x in kwargs.items()}
        out = func(*on_cpu, **options)
        if name in ("to", "cpu"):
            leaves = name == "cpu" or "cpu" in devices
            out = out.clone() if out is args[0] and (devices or name == "cpu") else out
            return out if leaves else self._put(out) if there or devices else out
        if name == "copy_":
            return self._put(out) if self.has(args[0]) else out
        assert not (there and name == "numpy"), "numpy cannot read a GPU's memory"
        assert not (there and here), f"{name} of tensors here and on a GPU"
        return tree_map(self._put, out) if there or "cuda" in devices else out
