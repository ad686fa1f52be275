"""Kernel parity: the layers that a run measures, at their real shape, against plain torch.

Every rank takes one layer of each kind that its stage has. The layer computes its output and all
gradients once, on the data of a micro-batch where it is the model's first and on random numbers
where it is not, in the run's precision on the run's device. The same layer in plain torch and
float64 says what they should be. Grids that leave out rows, indices of 32 bits that overflow,
races, and rows that are wrong at a block's border show as differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.records.schema import Check
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.layers.compare_layer import TOLERANCE, Comparison, compare_layer
from gnnhpc.validation.layers.compared_rows import When, compared_layers, layer_input
from gnnhpc.validation.reference.fresh_layers import build_layers, seed_of
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
    step, number = 0, 0
    if when == "end":
        step, number = experiment.train_steps - 1, experiment.microbatches - 1
    # The reference moves running statistics itself.
    deferred = experiment.model_copy(update={"batchnorm": "deferred"})

    def compare() -> dict[str, Comparison]:
        found, numbers = {}, torch.Generator().manual_seed(experiment.seed)
        for each in compared_layers(parts, when):
            x, context = layer_input(parts, each, microbatch, numbers)
            seed = seed_of(experiment.seed, f"{each.name}/{when}")
            reference = build_layers(deferred, each.specs, torch.float64)
            one = compare_layer(each, reference, x, context, torch.Generator().manual_seed(seed))
            if one is not None:
                found[each.name] = one
        return found

    with parts.batches.open("train", step, step + 1) as batches:
        microbatch = next(batches).microbatches[number]
        everyone = on_all_ranks(mesh, compare)
    return [_check(everyone, when, parts.implementation)] if mesh.rank == 0 else []


def _check(everyone: Sequence[Mapping[str, Comparison]], when: When, code: str) -> Check:
    """One verdict about all ranks' layers."""
    worst: dict[str, Comparison] = {}
    wrong = []
    for rank, layers in enumerate(everyone):
        for name, found in layers.items():
            if name not in worst or not found.worst <= worst[name].worst:
                worst[name] = found
            wrong += [f"{name} on rank {rank}: {difference}" for difference in found.wrong]
    largest = {n: each.worst if math.isfinite(each.worst) else None for n, each in worst.items()}
    infinite = [name for name, each in largest.items() if each is None]
    compared = {name: round(found.share, 4) for name, found in worst.items()}
    values = {"layers": largest, "compared": compared}
    if wrong:
        detail = f"differs from the reference form at the {when}: {'; '.join(wrong)}"
        return Check(NAME, "invalid", detail, values)
    if infinite:
        detail = f"not compared at the {when}: {', '.join(infinite)} give no finite numbers"
        return Check(NAME, "inconclusive", detail, values)
    least = min((found.share for found in worst.values()), default=1.0)
    most = max((found.worst for found in worst.values()), default=0.0)
    detail = (
        f"{len(worst)} kinds of layers in {code} differ from the reference form by "
        f"{most:.1e} at most, of {TOLERANCE:.0e} allowed; "
        f"{math.floor(100 * least)} % or more of their rows were compared at the {when}"
    )
    return Check(NAME, "ok", detail, values)
