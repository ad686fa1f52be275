"""The names of optimizers and learning-rate schedules, and the class behind each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

OPTIMIZERS = {
    "adam": "gnnhpc.optimizers.torch_optimizers:Adam",
    "adamw": "gnnhpc.optimizers.torch_optimizers:AdamW",
    "sgd": "gnnhpc.optimizers.torch_optimizers:Sgd",
}
LR_SCHEDULES = {
    "constant": "gnnhpc.optimizers.lr_schedules:Constant",
    "step": "gnnhpc.optimizers.lr_schedules:StepDecay",
    "cosine": "gnnhpc.optimizers.lr_schedules:Cosine",
    "warmup": "gnnhpc.optimizers.lr_schedules:Warmup",
}


def optimizer_class(name: str) -> type[Any] | None:
    """The class behind a name in a spec; None if there is none."""
    return _class_of(OPTIMIZERS, name)


def lr_schedule_class(name: str) -> type[Any] | None:
    """The class behind a name in a spec; None if there is none."""
    return _class_of(LR_SCHEDULES, name)


def _class_of(table: dict[str, str], name: str) -> type[Any] | None:
    if name not in table:
        return None
    module, _, attribute = table[name].partition(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found
