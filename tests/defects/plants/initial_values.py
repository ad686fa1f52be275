"""Initial values."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gnnhpc.engines import stage as module
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, rank

KIND = "initial values"
defect = functools.partial(planted, kind=KIND)


@defect("another seed for one replica", setting=settings.VIG_REPLICAS)
def other_seed() -> None:
    around(module, "layer_seed", lambda true, seed, name: true(seed + rank(), name))


@defect("initial values that do not depend on the seed", setting=settings.VIG)
def no_seed() -> None:
    around(module, "layer_seed", lambda true, seed, name: true(17, name))


@defect("one seed for all layers", setting=settings.VIG)
def one_seed() -> None:
    around(module, "layer_seed", lambda true, seed, name: true(seed, "layer"))


@defect("initial weights twice too large on one stage", setting=settings.VIG)
def too_large() -> None:
    def larger(true: Any, *args: Any) -> Any:
        stage = true(*args)
        if rank() == 1:
            with torch.no_grad():
                for parameter in stage.parameters():
                    parameter.mul_(2)
        return stage

    around(module, "build_stage", larger)


@defect("a layer frozen that should train", setting=settings.VIG)
def frozen() -> None:
    def freezes(true: Any, *args: Any) -> Any:
        stage = true(*args)
        if rank() == 0:
            for parameter in stage.layers[0].parameters():
                parameter.requires_grad_(False)
        return stage

    around(module, "build_stage", freezes)


@defect("cut in another place than planned", setting=settings.VIG)
def cut_elsewhere() -> None:
    def shifted(true: Any, experiment: Any, outlines: Any, parts: list[range], timer: Any) -> Any:
        (layers,) = parts
        if experiment.layout.stages > 1 and layers.start > 0:
            layers = range(layers.start + 1, layers.stop)
        return true(experiment, outlines, [layers], timer)

    around(module, "build_stage", shifted)
