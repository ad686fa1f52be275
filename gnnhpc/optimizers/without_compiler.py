"""torch's optimizers without its compiler, which takes seconds to import."""

from __future__ import annotations

import functools
import inspect

import torch


@functools.cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimizer, bit for bit, that does not import torch's compiler on first use.

    The decorators that torch puts around these three methods import `torch._dynamo` even where
    nothing is compiled: one to two processor seconds at the start of every rank.
    """
    methods = {
        name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")
    }
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    made: type[torch.optim.Optimizer] = type(kind.__name__, (kind,), methods)
    return made
