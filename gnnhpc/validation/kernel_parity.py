"""Kernel parity: the layers that a run measures, at their real shape, against plain torch.

Every rank takes one layer of each kind that its stage has. The layer computes its output and all
gradients once, on the data of a micro-batch where it is the model's first and on random numbers
where it is not, in the run's precision on the run's device. The same layer in plain torch and
float64 says what they should be. Grids that leave out rows, indices of 32 bits that overflow,
races, and rows that are wrong at a block's border show as differences.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence

import torch

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.records.schema import Check
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.layers.compare_layer import compare_layer
from gnnhpc.validation.layers.layer_differences import TOLERANCE, Comparison
from gnnhpc.validation.layers.layer_inputs import (
    When,
    compared_layers,
    layer_inputs,
    one_of_each_kind,
    stacked_layers,
)
from gnnhpc.validation.reference.fresh_layers import build_layers
from gnnhpc.validation.verdicts import on_all_ranks

NAME = "kernel-parity"


def check_kernels(
    experiment: Experiment, parts: TrainingParts, mesh: Mesh, *, when: When
) -> list[Check]:
    """The check on rank 0, an empty list on the others; a collective outside of all steps.

    The run's layers, their buffers and all random numbers stay as they are. The end takes other
    layers, another micro-batch and other rows than the start.
    """
    if isinstance(experiment.model, CustomModel):
        detail = "the layers are a custom model's and have no reference form"
        return [Check(NAME, "ok", detail)] if mesh.rank == 0 else []
    began = time.perf_counter()
    layers = one_of_each_kind(compared_layers(parts.stage, parts.layer_specs[0].name), when)
    if when == "start":
        layers += stacked_layers(parts.stage)
    inputs = layer_inputs(experiment, parts, layers, when)
    # The reference moves running statistics itself.
    deferred = experiment.model_copy(update={"batchnorm": "deferred"})

    def compare() -> dict[str, Comparison]:
        found = {}
        for each in layers:
            generator = torch.Generator().manual_seed(_seed(experiment, each.name, when))
            reference = build_layers(deferred, each.specs, torch.float64)
            one = compare_layer(each, reference, inputs[each.layers[0]], generator)
            if one is not None:
                found[each.name] = one
        return found

    everyone = on_all_ranks(mesh, compare)
    seconds = round(time.perf_counter() - began, 3)
    return [_check(everyone, when, seconds)] if mesh.rank == 0 else []


def _seed(experiment: Experiment, name: str, when: When) -> int:
    digest = hashlib.sha256(f"{experiment.seed}/{name}/{when}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _check(everyone: Sequence[Mapping[str, Comparison]], when: When, seconds: float) -> Check:
    """One verdict about all ranks' layers."""
    worst: dict[str, Comparison] = {}
    wrong = []
    for rank, layers in enumerate(everyone):
        for name, found in layers.items():
            if name not in worst or not found.worst <= worst[name].worst:
                worst[name] = found
            where = f"{name} ({found.implementation}) on rank {rank}"
            wrong += [f"{where}: {difference}" for difference in found.wrong]
    values = {
        "seconds": seconds,
        "layers": {
            name: found.worst if math.isfinite(found.worst) else None
            for name, found in worst.items()
        },
        "compared": {name: round(found.share, 4) for name, found in worst.items()},
    }
    if wrong:
        detail = f"differs from the reference form at the {when}: {'; '.join(wrong)}"
        return Check(NAME, "invalid", detail, values)
    infinite = [name for name, found in worst.items() if not found.finite]
    if infinite:
        detail = f"not compared at the {when}: {', '.join(infinite)} give no finite numbers"
        return Check(NAME, "inconclusive", detail, values)
    largest = max((found.worst for found in worst.values()), default=0.0)
    code = sorted({found.implementation for found in worst.values()})
    least = min((found.share for found in worst.values()), default=1.0)
    detail = (
        f"{len(worst)} kinds of layers in {' and '.join(code)} differ from the reference form by "
        f"{largest:.1e} at most, of {TOLERANCE:.0e} allowed; {math.floor(100 * least)} % or more "
        f"of their rows were compared at the {when}"
    )
    return Check(NAME, "ok", detail, values)
