"""What all optimizers have in common: their settings, and the learning rate of a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny

from gnnhpc.core.settings import Strict, parse_named
from gnnhpc.optimizers.lr_schedules import Constant, LrSchedule
from gnnhpc.optimizers.registry import allowed_lr_schedules, lr_schedule_class

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Array = npt.NDArray[np.float64]


def _parse_lr_schedule(value: object) -> object:
    return parse_named(value, lr_schedule_class, allowed_lr_schedules())


class OptimizerConfig(Strict):
    """The settings of every optimizer; `name` chooses one."""

    name: str
    """Which optimizer: adam, adamw or sgd."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """The learning rate."""
    lr_schedule: Annotated[SerializeAsAny[LrSchedule], BeforeValidator(_parse_lr_schedule)] = (
        Constant()
    )
    """How the learning rate follows from the step: constant, step, cosine or warmup."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """The factor of each parameter that is added to its gradient; adamw takes it off the parameter
    instead."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """The largest norm of the gradient of all parameters together, over all stages; a larger
    gradient is scaled down to it. None leaves gradients as they are."""

    @property
    def copies(self) -> float:
        """Parameters, gradients and the optimizer's state together, in sizes of the parameters."""
        return 4.0

    @abstractmethod
    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        """torch's optimizer of these parameters; `fused` where one kernel may update them."""

    def lr_at(self, step: int, total: int) -> float:
        """The learning rate of training step `step`, the first being 0, of `total`."""
        return self.lr * self.lr_schedule.factor(step, total)

    def reference_move(
        self, value: Array, gradient: Array, state: dict[str, Array], lr: float
    ) -> Array:
        """What a step adds to a parameter, in float64, by the published rule; for validation.

        `state` is kept between steps. The rules of the built-in optimizers are apart from them, in
        `gnnhpc.validation.reference.optimizer_rule`.
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
