"""The optimizer of one rank's stage."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from gnnhpc.engines.gradient_sync import dense_strides
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment


def _without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """The same optimizer, bit for bit, that does not import torch's compiler on first use.

    The decorators that torch puts around these three methods import `torch._dynamo` even where
    nothing is compiled: one to two processor seconds at the start of every rank.
    """
    methods = {
        name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")
    }
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)


_SGD = _without_compiler(torch.optim.SGD)
_Adam = _without_compiler(torch.optim.Adam)


def build_optimizer(experiment: Experiment, stage: Stage) -> torch.optim.Optimizer | None:
    """None for a stage without parameters, such as one that holds only a dropout layer."""
    parameters = list(stage.parameters())
    if not parameters:
        return None
    options = experiment.optimizer
    if options.name == "sgd":
        return _SGD(parameters, lr=options.lr, weight_decay=options.weight_decay)
    # The fused form goes through memory, and past the elements of a slice of something larger.
    fused = all(p.stride() == dense_strides(p) for p in parameters) or None
    return _Adam(parameters, lr=options.lr, weight_decay=options.weight_decay, fused=fused)
