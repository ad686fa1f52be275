"""Optimizers: their settings, the learning rate of a step, and torch's classes behind them."""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from gnnhpc.core.settings import Strict, parse_named
from gnnhpc.optimizers.lr_schedules import LR_SCHEDULES, Constant, LrSchedule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Array = npt.NDArray[np.float64]


def _parse_lr_schedule(value: object) -> object:
    return parse_named(value, LR_SCHEDULES.get, ", ".join(LR_SCHEDULES))


class OptimizerConfig(Strict):
    """The settings of every optimizer; `name` chooses one."""

    name: str
    """Which optimizer: adam, adamw or sgd."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """The learning rate."""
    lr_schedule: Annotated[SerializeAsAny[LrSchedule], BeforeValidator(_parse_lr_schedule)] = (
        Constant()
    )
    """How the learning rate follows from the step: constant, step, cosine or warmup, such as
    `{name: cosine, final: 0.1}`."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """The factor of each parameter that is added to its gradient; adamw takes it off the parameter
    instead."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """The largest norm of the gradient of all parameters together, over all stages; a larger
    gradient is scaled down to it. None leaves gradients as they are."""

    @abstractmethod
    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        """torch's optimizer of these parameters; `fused` where one kernel may update them."""

    def _torchs(
        self, name: str, parameters: Sequence[torch.Tensor], **settings: Any
    ) -> torch.optim.Optimizer:
        """torch's optimizer of this name with the settings of all optimizers, and others."""
        kind: Any = without_compiler(name)
        built: torch.optim.Optimizer = kind(
            parameters, lr=self.lr, weight_decay=self.weight_decay, **settings
        )
        return built

    def lr_at(self, step: int, total: int) -> float:
        """The learning rate of training step `step`, the first being 0, of `total`."""
        return self.lr * self.lr_schedule.factor(step, total)

    def reference_move(
        self, value: Array, gradient: Array, state: dict[str, Array], lr: float
    ) -> Array:
        """What a step adds to a parameter, in float64, by the published rule; for validation.

        `state` is kept between steps. The rules of the built-in optimizers are apart from them, in
        `gnnhpc.validation.reference.training_step`.
        """
        raise NotImplementedError(f"optimizer {self.name} has no reference_move")

    def content(self) -> dict[str, Any]:
        """The settings as plain data, without the defaults of all optimizers and of adam."""
        settings = self.model_dump(mode="json", exclude_defaults=True)
        if self.name != "adam":
            settings["name"] = self.name
        if self.lr_schedule != Constant():
            settings["lr_schedule"] = self.lr_schedule.model_dump(mode="json")
        return settings


class Adam(OptimizerConfig):
    """Adam (Kingma & Ba 2015), with the paper's betas and epsilon."""

    name: Literal["adam"] = "adam"

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        return self._torchs("Adam", parameters, fused=fused or None)


class AdamW(OptimizerConfig):
    """Adam whose weight decay does not pass through the gradient (Loshchilov & Hutter 2019)."""

    name: Literal["adamw"] = "adamw"

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        return self._torchs("AdamW", parameters, fused=fused or None)


class Sgd(OptimizerConfig):
    """Stochastic gradient descent, with momentum where it is asked for."""

    name: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the last move's direction that is added to the gradient."""

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        return self._torchs("SGD", parameters, momentum=self.momentum)


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {"adam": Adam, "adamw": AdamW, "sgd": Sgd}
"""Name in a spec -> the class behind it."""


@functools.cache
def without_compiler(name: str) -> type[torch.optim.Optimizer]:
    """torch's optimizer of this name, bit for bit, without importing torch's compiler on first use.

    The decorators that torch puts around these three methods import `torch._dynamo` even where
    nothing is compiled: one to two processor seconds at the start of every rank.
    """
    import torch

    kind: Any = getattr(torch.optim, name)
    methods = {
        each: inspect.unwrap(getattr(kind, each)) for each in ("add_param_group", "zero_grad")
    }
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    made: type[torch.optim.Optimizer] = type(name, (kind,), methods)
    return made
