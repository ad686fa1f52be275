"""Names that `gnnhpc.check` imports until it is removed."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass
class LeftGradient:
    """The gradient of one weight that is computed later."""

    weight: Tensor
    compute: Callable[[], Tensor]
    layer: str | None = None


Listener = Callable[[LeftGradient], None]


def leaves_weights(module: nn.Module) -> bool:
    """Whether a layer in it may defer gradients of weights."""
    modules = (type(each).__module__ for each in module.modules())
    return any(each.startswith("gnnhpc.models.layers") for each in modules)
