"""Dropout masks."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from gnnhpc.kernels import mask
from gnnhpc.models import dropout
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, replace

KIND = "masks"
defect = functools.partial(planted, kind=KIND)


@defect("dropout masks used twice: one for all steps", setting=settings.GAT)
def one_for_all_steps() -> None:
    around(mask, "layer_mask", lambda true, seed, step, name, p: true(seed, 0, name, p))


@defect("dropout masks used twice, later in the run", setting=settings.GAT)
def same_late() -> None:
    around(mask, "layer_mask", lambda true, seed, step, name, p: true(seed, min(step, 4), name, p))


@defect("one dropout mask for all layers", setting=settings.GAT)
def one_for_all_layers() -> None:
    around(mask, "layer_mask", lambda true, seed, step, name, p: true(seed, step, "layer", p))


@defect("dropout masks that do not depend on the seed", setting=settings.GAT)
def no_seed() -> None:
    around(mask, "layer_mask", lambda true, seed, step, name, p: true(17, step, name, p))


@defect("dropout at half its rate", setting=settings.GAT)
def half_rate() -> None:
    around(mask, "layer_mask", lambda true, seed, step, name, p: true(seed, step, name, p / 2))


@defect("kept entries not scaled up", setting=settings.GAT)
def unscaled() -> None:
    around(mask, "layer_mask", lambda true, *args: dataclasses.replace(true(*args), scale=1.0))


@defect("no dropout in training", setting=settings.GAT)
def none() -> None:
    replace(dropout, "active_mask", lambda *args: None)


@defect("dropout in evaluation", setting=settings.GAT)
def in_evaluation() -> None:
    around(
        dropout,
        "active_mask",
        lambda true, name, p, training, context: true(name, p, True, context),
    )


@defect("backward through another dropout mask", setting=settings.GAT)
def other_backward() -> None:
    def unmasked(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return upstream * 0.4, None, None

    replace(dropout._Drop, "backward", staticmethod(unmasked))


@defect("dropout masks by the row of a chunk", setting=settings.GAT)
def by_row() -> None:
    """A node has another mask in each chunk, and in each layout."""

    def rows_of_chunk(true: Any, x: Tensor, rows: Tensor, mask: Any) -> Tensor:
        return true(x, torch.arange(len(rows)), mask)

    around(dropout, "_masked", rows_of_chunk)
