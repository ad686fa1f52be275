"""Layers that are right when a run begins, and wrong later; or right for few images alone."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines.ddp_gradients import DdpReplicas
from gnnhpc.kernels import gat, mask
from gnnhpc.kernels.vig_torch import Statistics
from gnnhpc.models.batchnorm import BatchNorm
from gnnhpc.models.gat import fused
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, statistics_moved

KIND = "layers wrong later, or with many images"
defect = functools.partial(planted, kind=KIND)
FEW = 2
"""Images a micro-batch, of a check at the start."""


@defect("attention's gradient half as large again, later in the run", setting=settings.GAT)
def attention_backward() -> None:
    steps = Steps()

    def backward(true: Any, *args: Any, **named: Any) -> Any:
        return tuple(each * (1.5 if steps.late else 1.0) for each in true(*args, **named))

    around(gat, "attend_backward", backward)


@defect("attention's output 5 % too large in training, later in the run", setting=settings.GAT)
def attention_forward() -> None:
    steps = Steps()

    def forward(true: Any, *args: Any, mask: Any, **named: Any) -> Any:
        found = true(*args, mask=mask, **named)
        if steps.late and mask is not None:
            found.out.mul_(1.05)
        return found

    around(gat, "attend_forward", forward)


@defect("attention's own dropout masks used twice, later in the run", setting=settings.GAT)
def attention_masks() -> None:
    def stale(true: Any, seed: int, step: int, name: str, p: float) -> Any:
        return true(seed, min(step, 4) if "attention" in name else step, name, p)

    around(mask, "layer_mask", stale)


@defect("ELU's gradient three times as large, later in the run", setting=settings.GAT)
def elu_backward() -> None:
    steps, true = Steps(), fused._Attend.backward

    def backward(context: Any, upstream: Tensor) -> Any:
        first, *others = true(context, upstream)
        return first * (3.0 if steps.late else 1.0), *others

    fused._Attend.backward = staticmethod(backward)  # type: ignore[method-assign, assignment]


@defect("an FFN's output scaled by 1.01 in training, later in the run", setting=settings.VIG)
def ffn_forward() -> None:
    steps = Steps()

    def forward(true: Any, layer: Any, *args: Any) -> Tensor:
        found: Tensor = true(layer, *args)
        return found * (1.01 if steps.late and layer.training else 1.0)

    around(FusedFfn, "forward", forward)


@defect("running statistics that move a tenth as far, later in the run", setting=settings.VIG)
def slow_statistics() -> None:
    steps = Steps()

    def move(true: Any, norm: BatchNorm, *args: Any) -> None:
        momentum = norm.momentum
        norm.momentum = 0.01 if steps.late else momentum
        true(norm, *args)
        norm.momentum = momentum

    around(BatchNorm, "_move", move)

    def change(old: Statistics, new: Statistics, _momentum: float, _rows: int) -> None:
        for before, after in zip(old, new, strict=True):
            after.lerp_(before, 0.9 if steps.late else 0.0)

    statistics_moved(change)


@defect(
    "gradients summed over torch's replicas, later in the run",
    setting=settings.VIG_TORCH_REPLICAS,
)
def summed_by_torch() -> None:
    steps = Steps()

    def reduce(true: Any, replicas: DdpReplicas, bucket: Any) -> Any:
        mean = true(replicas, bucket)
        return mean.then(lambda done: _first(done.value()).mul_(2.0)) if steps.late else mean

    around(DdpReplicas, "reduce", reduce)


def _first(value: Any) -> Tensor:
    found: Tensor = value[0] if isinstance(value, list) else value
    return found


@defect("a layer wrong for the third image and later ones", setting=settings.VIG_MANY_IMAGES)
def third_image() -> None:
    def forward(true: Any, layer: Any, x: Tensor, *args: Any) -> Tensor:
        found: Tensor = true(layer, x, *args)
        if not layer.training or len(x) <= FEW:
            return found
        return torch.cat((found[:FEW], found[FEW:] * 1.2))

    around(FusedGrapher, "forward", forward)


@defect("a layer's gradient wrong with more than two images", setting=settings.VIG_MANY_IMAGES)
def gradient_of_many() -> None:
    def forward(true: Any, layer: Any, x: Tensor, *args: Any) -> Tensor:
        found: Tensor = true(layer, x, *args)
        if found.requires_grad and len(x) > FEW:
            found.register_hook(lambda gradient: gradient * 1.3)
        return found

    around(FusedGrapher, "forward", forward)
