"""Optimizers and learning-rate schedules: their settings, and torch's classes behind them.

A learning rate is a function of the training step, so that a resumed run needs no state.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from gnnhpc.core.settings import Steps, Strict, parse_named

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Array = npt.NDArray[np.float64]


class LrSchedule(Strict):
    """What the learning rate is multiplied by in a step."""

    name: str

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """The factor of training step `step`, the first being 0, of `total`."""


class Constant(LrSchedule):
    """The same learning rate in every step."""

    name: Literal["constant"] = "constant"

    def factor(self, step: int, total: int) -> float:
        return 1.0


class StepDecay(LrSchedule):
    """Multiplies the learning rate by `gamma` every `every` steps."""

    name: Literal["step"] = "step"
    every: Annotated[Steps, Field(ge=1)] = 100
    """Training steps between two changes."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    """What the learning rate is multiplied by at each change."""

    def factor(self, step: int, total: int) -> float:
        return self.gamma ** (step // self.every)


class Cosine(LrSchedule):
    """Lets the learning rate fall to `final` of itself at the last step, along half a cosine."""

    name: Literal["cosine"] = "cosine"
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the learning rate that is left at the end."""

    def factor(self, step: int, total: int) -> float:
        done = min(step / total, 1.0)
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * done)) / 2.0


class Warmup(LrSchedule):
    """Lets the learning rate rise in equal steps, and then keeps it or lets it fall."""

    name: Literal["warmup"] = "warmup"
    steps: Annotated[Steps, Field(ge=1)] = 100
    """Training steps until the full learning rate; the first step has one `steps`-th of it."""
    then: Literal["constant", "cosine"] = "constant"
    """What follows: the full learning rate, or half a cosine down to 0 at the last step."""

    def factor(self, step: int, total: int) -> float:
        if step < self.steps:
            return (step + 1) / self.steps
        if self.then == "constant":
            return 1.0
        return Cosine().factor(step - self.steps, max(1, total - self.steps))


LR_SCHEDULES: dict[str, type[LrSchedule]] = {
    "constant": Constant,
    "step": StepDecay,
    "cosine": Cosine,
    "warmup": Warmup,
}
"""Name in a spec -> the class behind it."""


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

    torchs: ClassVar[str]
    """The name of torch's class, which takes settings that not all optimizers have by their names
    here."""
    has_fused: ClassVar[bool] = True
    """Whether one kernel may update all parameters."""

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        """torch's optimizer of these parameters; `fused` where they lie as one kernel needs."""
        settings = self.model_dump(exclude=set(OptimizerConfig.model_fields))
        if self.has_fused:
            settings["fused"] = fused or None
        kind: Any = without_compiler(self.torchs)
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
    torchs = "Adam"


class AdamW(OptimizerConfig):
    """Adam whose weight decay does not pass through the gradient (Loshchilov & Hutter 2019)."""

    name: Literal["adamw"] = "adamw"
    torchs = "AdamW"


class Sgd(OptimizerConfig):
    """Stochastic gradient descent, with momentum where it is asked for."""

    name: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the last move's direction that is added to the gradient."""
    torchs = "SGD"
    has_fused = False


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
