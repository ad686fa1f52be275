"""Layers that `torch.compile` compiles, and a count of what it has compiled in this process.

torch compiles a function when it is called with tensors of a new kind, and keeps the result with
the function's code. So copies of a layer, and layers that are built anew, share what is compiled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gnnhpc.models.model import Context

_Forward = Callable[["nn.Module", Any, "Context"], "Tensor"]
_started = 0
_running = 0


def compilations() -> int:
    """How many forwards and backwards torch has compiled, or recorded as CUDA graphs."""
    return _started


def is_compiling() -> bool:
    """Whether torch compiles now; a C++ compiler may then work in another process."""
    return _running > 0


def compile_library_layer(layer: nn.Module, mode: str, *, dynamic: bool) -> None:
    """Let torch compile a layer's `compute`, a method of tensors without our context and masks.

    With `dynamic` one result serves tensors of all sizes. A layer without `compute` stays as it is.
    """
    function = getattr(type(layer), "compute", None)
    if function is not None:
        # A method: deepcopy binds it to the copy.
        compiled: Any = MethodType(_compiled(function, mode, dynamic=dynamic), layer)
        layer.compute = compiled


def compile_custom_layer(layer: nn.Module, mode: str, *, dynamic: bool, hop: int | None) -> None:
    """Let torch compile a layer's `forward(x, context)`; of a layer that uses neighbours, `hop` is
    the number of its block.

    torch cannot trace how a block is made, moved and completed on request. So the first call of all
    layers of this code is not compiled and shows what a layer reads of its block, which is there
    before each later one.
    """
    from gnnhpc.models.layers.dropout_layer import Dropout

    if isinstance(layer, Dropout):
        return
    function: Any = type(layer).forward
    compiled: _Forward = _compiled(function, mode, dynamic=dynamic)
    read: set[str] = _read.setdefault((function.__code__, hop), set())

    def forward(self: nn.Module, x: Any, context: Context) -> Tensor:
        if context.graph is None or hop is None:
            return compiled(self, x, context)
        blocks = context.graph.blocks
        block = blocks[hop]
        if not read:
            output: Tensor = function(self, x, context)
            read.update(vars(block))
            return output
        for name in read:
            getattr(block, name)
        plain = dataclasses.replace(context.graph, blocks=[block] * len(blocks))
        return compiled(self, x, dataclasses.replace(context, graph=plain))

    method: Any = MethodType(forward, layer)
    layer.forward = method


_read: dict[object, set[str]] = {}
"""Code and hop -> attributes of a block that layers read; empty before the first call."""


def _compiled(function: Any, mode: str, *, dynamic: bool) -> Any:
    _prepare()
    import torch

    return torch.compile(function, mode=mode, dynamic=dynamic)


@functools.cache
def _prepare() -> None:
    """Count compilations, refuse the silent way back to eager code, and keep out of graphs what
    changes from step to step."""
    import torch
    from torch import _dynamo as dynamo
    from torch._dynamo.callback import callback_handler

    from gnnhpc.models.layers.batchnorm import BatchNorm
    from gnnhpc.models.layers.dropout_layer import Dropout

    # Layers of one class share one limit, and each has settings of its own.
    dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit
    dynamo.config.fail_on_recompile_limit_hit = True
    callback_handler.register_start_callback(_starts)
    callback_handler.register_end_callback(_ends)
    disable: Any = torch.compiler.disable
    # Its masks follow from the step and come from a kernel that torch cannot trace.
    Dropout.forward = disable(Dropout.forward)  # type: ignore[method-assign]
    # Deferred statistics count the rows that the mini-batch has had.
    BatchNorm.observe = disable(BatchNorm.observe)  # type: ignore[method-assign]


def _starts(_arguments: Any) -> None:
    global _started, _running  # noqa: PLW0603
    _started += 1
    _running += 1


def _ends(_arguments: Any) -> None:
    global _running  # noqa: PLW0603
    _running -= 1
