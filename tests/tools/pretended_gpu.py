"""A GPU that is pretended on a CPU: where its tensors lie, and what a CUDA graph of it replays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

aten = torch.ops.aten
WAITING = (
    *(aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.lift_fresh, aten.nonzero),
    *(aten.masked_select, aten.unique_dim, aten._unique2, aten.unique_consecutive),
    *(aten.bincount, aten.repeat_interleave),
)
"""Operators whose result the host reads, whose size depends on values, or that copy numbers of the
host to the device: a capture does not allow them."""
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
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if self.has(args[0]) else torch.device("cpu")
        if func is torch.device or name in _SIZES:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        devices = {x.type for x in leaves if isinstance(x, torch.device)}
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        of_host = [x for x in tensors if not self.has(x) and x.dim()]
        has_gpu = any(map(self.has, tensors))
        on_cpu = tree_map(lambda x: torch.device("cpu") if isinstance(x, torch.device) else x, args)
        options = {key: torch.device("cpu") if key == "device" else x for key, x in kwargs.items()}
        out = func(*on_cpu, **options)
        if name in ("to", "cpu"):
            to_host = name == "cpu" or "cpu" in devices
            out = out.clone() if out is args[0] and (devices or name == "cpu") else out
            return out if to_host else self._put(out) if has_gpu or devices else out
        if name == "copy_":
            return self._put(out) if self.has(args[0]) else out
        assert not (has_gpu and name == "numpy"), "numpy cannot read a GPU's memory"
        assert not (has_gpu and of_host), f"{name} of tensors of the host and of a GPU"
        return tree_map(self._put, out) if has_gpu or "cuda" in devices else out


class SimulatedGraph:
    """Operators in their order, with the tensors that they read and those that they made.

    As on a GPU, a capture computes nothing that lasts, Python runs in the capture alone, and a
    replay reads and writes the tensors of the capture. Kernels that are no operators of torch are
    not seen.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def replay(self) -> None:
        with torch.no_grad():
            for operator, args, kwargs, made in self.calls:
                found = tree_leaves(operator(*args, **kwargs))
                for into, value in zip(made, found, strict=True):
                    # A sparse tensor is made of others, which are there.
                    if into.layout == torch.strided and into.data_ptr() != value.data_ptr():
                        into.copy_(value)


class _Capture(TorchDispatchMode):
    def __init__(self, graph: SimulatedGraph, streams: _Streams) -> None:
        super().__init__()
        self._graph, self._streams = graph, streams

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        by_mask = func.overloadpacket is aten.index and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if func.overloadpacket in WAITING or by_mask:
            raise RuntimeError(f"{func} waits for the device")
        if torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        written = _written(func, args, kwargs)
        before = [each.clone() for each in written]
        result = func(*args, **kwargs)
        for tensor, value in zip(written, before, strict=True):
            tensor.copy_(value)
        # Copies of shapes and strides, which later operators may change in place.
        call = tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs, tree_leaves(result)))
        self._graph.calls.append((func, *call))
        self._streams.reserved_bytes += 1
        return result


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operator changes; batch_norm moves statistics that its schema hides."""
    if func.overloadpacket is aten.native_batch_norm:
        return [each for each in args[3:5] if each is not None]
    names = [argument.name for argument in func._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    return [
        leaf
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(arguments.get(argument.name))
        if isinstance(leaf, Tensor)
    ]


class _Stream:
    device = torch.device("cpu")

    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


class _Streams:
    """Which stream is the current one, and what becomes of pools of memory."""

    def __init__(self) -> None:
        self.current = _Stream()
        self.spoilt: set[object] = set()
        """Pools of captures whose end failed."""
        self.reserved_bytes = 0
        """A byte for each operator that was captured."""

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(
        self, graph: SimulatedGraph, *, pool: object, stream: _Stream, **_: Any
    ) -> Iterator[None]:
        """As torch's: where the end of a capture fails, its stream stays the current one."""
        assert pool not in self.spoilt, "torch still records to this pool"
        before, self.current = self.current, stream
        try:
            with _Capture(graph, self):
                yield
        except RuntimeError:
            self.spoilt.add(pool)
            raise
        self.current = before


@contextlib.contextmanager
def simulated() -> Iterator[_Streams]:
    """Within it `gnnhpc.engines.cuda_graph` captures on a CPU."""
    streams = _Streams()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "CUDAGraph": SimulatedGraph,
            "graph": streams.graph,
            "Stream": _Stream,
            "current_stream": lambda *_: streams.current,
            "stream": streams.stream,
            "graph_pool_handle": object,
            "memory_reserved": lambda device: streams.reserved_bytes,
            "memory_allocated": lambda device: 0,
            "get_sync_debug_mode": lambda: 0,
            "set_sync_debug_mode": lambda mode: None,
        }.items():
            patch.setattr(torch.cuda, name, value)
        yield streams
