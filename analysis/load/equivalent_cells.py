"""Compares cells that must learn the same with their group's sequential cell, step by step.

The loss of a step is a function of the initial values, of the step's samples and, where BatchNorm
normalises by micro-batch, of which samples share a micro-batch. Layout, schedule, engine, virtual
stages, balance and implementation decide only who computes it. Cells that are equal in everything
else are a group of equivalent cells, and each of them stays within one fixed envelope around the
group's sequential cell: the relative difference of losses, and of norms of the whole gradient.

Rounding alone drives equivalent trainings apart, as sums have another order and training enlarges
a difference step by step. The envelope is five times as wide or more as what healthy float32 cells
of eight models showed over 80 to 300 steps (layouts, implementations, halo chunks, learning rates
of 0.001 to 0.05), until it allows half of the value, after 15 steps of losses and 10 of norms. ViG
goes furthest, as its neighbours change with its features. Later steps are compared with the largest
difference of all steps before: rounding enlarges it little by little, and an error makes it jump.

Gradients of one stage that are 5 % too large are found at the step where they begin, by the norm;
losses do not show them, as Adam's steps do not depend on the scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import is_custom
from gnnhpc.models.model_registry import model_class

Series = NDArray[np.float64]
"""One value a training step, from step 0; nan where a step has none."""


class Envelope(NamedTuple):
    """The largest relative difference of a quantity that rounding explains, by step."""

    first: float
    """The envelope at step 0, before any update."""
    later: float
    """The envelope at step n is this value times `_GROWTH ** n`."""

    def allowed(self, apart: Series, dtype: str = "float32") -> Series:
        """What is allowed of each step's difference `apart`, nan where so much is allowed that a
        comparison means nothing."""
        scale = _FLOAT64 if dtype == "float64" else 1.0
        fixed = scale * self.later * _GROWTH ** np.arange(len(apart), dtype=np.float64)
        fixed[:1] = scale * self.first
        largest = np.fmax.accumulate(np.concatenate(([0.0], apart)))[:-1]
        later = np.maximum(_JUMP * np.nan_to_num(largest), scale * self.later)
        allowed = np.where(fixed < _MEANINGLESS, fixed, later)
        return np.where(allowed < _MEANINGLESS, allowed, np.nan)


LOSS, NORM = Envelope(first=1e-5, later=5e-4), Envelope(first=4e-4, later=5e-3)
_GROWTH = 1.6
_MEANINGLESS = 0.5
_JUMP = 30.0
"""By how much the difference may grow from one step to the next, where the envelope has ended."""
_FLOAT64 = 1e-5
"""What float64 allows of what float32 does."""
_RECORDED = 2e-9
"""How far apart numbers are that records keep to nine digits after the point."""
_SMALL = 1e-3
"""The share of the first value below which differences are relative to that share: a loss near
zero is the difference of much larger numbers."""


@dataclass(frozen=True)
class Trajectory:
    """What one cell learnt."""

    losses: Series
    norms: Series
    """The norm of the whole gradient, over all stages; nan where it is not recorded."""
    dtype: str = "float32"


class ComparedCell(NamedTuple):
    """What comparing a cell with its sequential cell found."""

    steps: int | None = None
    """How many training steps were compared with another configuration's; None for repeats of the
    sequential cell."""
    cause: str = ""
    """The first step that leaves the envelope, and its likely cause; empty for none."""
    suspect: bool = False
    """Whether the cause may be the BatchNorm of a custom model in other micro-batches."""
    alone: bool = False
    """Whether no sequential cell is equivalent to it."""


def compare_equivalent_cells(
    plans: Mapping[str, tuple[str, Experiment]], learnt: Mapping[str, Trajectory]
) -> dict[str, ComparedCell]:
    """Compare cells by name; `plans` has the run and the experiment of each.

    Those without a trajectory in `learnt` are not compared.
    """
    groups: dict[tuple[str, str], dict[str, Experiment]] = {}
    for name, (run, experiment) in plans.items():
        if name in learnt:
            groups.setdefault((run, equivalence_key(experiment)), {})[name] = experiment
    found: dict[str, ComparedCell] = {}
    for group in groups.values():
        sequential = [name for name, one in group.items() if one.layout.world_size == 1]
        if not sequential:
            found |= dict.fromkeys(group, ComparedCell(alone=True))
            continue
        reference = min(sequential, key=lambda name: _plainest_first(group[name]))
        plain = group[reference]
        for name, one in group.items():
            cause = divergence(learnt[reference], learnt[name])
            suspect = is_custom(one.model.name) and one.total_chunks != plain.total_chunks
            if cause and suspect:
                cause += ", or BatchNorm or other state of the model in other micro-batches"
            if cause:
                cause += f" (sequential cell: {reference})"
            # Repeats and spans change the records alone.
            other = one.model_copy(update={"repeat": plain.repeat, "spans": plain.spans})
            steps = (
                None if other.id == plain.id else compared_steps(learnt[reference], learnt[name])
            )
            found[name] = ComparedCell(steps, cause, suspect)
    return found


def equivalence_key(experiment: Experiment) -> str:
    """Equal for experiments whose training losses and gradients are equal but for rounding."""
    model = experiment.model.content()
    model.pop("implementation", None)
    return json.dumps(
        {
            "model": model,
            "data": experiment.data.content(),
            "optimizer": experiment.optimizer.model_dump(),
            "seed": experiment.seed,
            "dtype": experiment.dtype,
            "device": experiment.device,
            "task": experiment.task.model_dump() if experiment.task else None,
            "step": _samples_of_a_step(experiment),
        },
        sort_keys=True,
    )


def _samples_of_a_step(experiment: Experiment) -> list[Any]:
    """What of a step's samples must be equal.

    Images and many graphs: an epoch is one permutation, cut into mini-batches of all replicas, and
    these into micro-batches of consecutive samples, so the rows of both decide everything. A graph:
    a step is the whole graph, in one micro-batch as in several halo chunks; other chunks lose
    edges, and their number decides which. With the sampler `ours`, sampled neighbours follow from
    seed, step and node; a library's follow from what else it samples. A custom model is taken to
    learn the same from the whole graph and from its halo chunks, which BatchNorm alone does not.
    """
    replicas, microbatches = experiment.layout.replicas, experiment.microbatches
    sampling = experiment.sampling
    known = model_class(experiment.model.name)
    by_microbatch = known is None or known.uses_batchnorm
    if sampling is not None:
        assert experiment.batch_size is not None
        together = experiment.batch_size * replicas
        settings = sampling.model_dump(exclude={"workers"})
        if sampling.sampler != "ours":
            return [together, settings, replicas, microbatches, sampling.workers]
        return [together, settings, [replicas, microbatches] if by_microbatch else None]
    if experiment.batch_size is not None:
        rows = experiment.batch_size // microbatches if by_microbatch else None
        return [experiment.batch_size * replicas, rows]
    whole = experiment.total_chunks == 1 or experiment.chunks == "halo"
    if whole and (not by_microbatch or is_custom(experiment.model.name)):
        return ["whole graph"]
    return [experiment.chunks, experiment.total_chunks]


def _plainest_first(experiment: Experiment) -> tuple[bool, int, int]:
    """Reference layers before others, then fewer micro-batches, then earlier repeats."""
    implementation = getattr(experiment.model, "implementation", None)
    return implementation != "reference", experiment.microbatches, experiment.repeat


def valid_trajectories(ranks: pd.DataFrame, cells: pd.DataFrame) -> dict[str, Trajectory]:
    """The trajectory of each valid cell with training losses; `ranks` are its step records.

    The loss is the last stage's. The norm is the root of the sum of squares over the stages of the
    first replica, as all replicas have the same gradient.
    """
    valid = cells[cells["valid"]]
    dtypes = dict(zip(valid["cell"].astype(str), valid["dtype"], strict=True))
    train = ranks[(ranks["phase"] == "train").to_numpy()]
    square = np.where(train["replica"] == 0, train["grad_norm"] ** 2, np.nan)
    grouped = train.assign(square=square).groupby(["cell", "step"], observed=True)
    merged = pd.DataFrame(
        {"loss": grouped["loss"].max(), "norm": np.sqrt(grouped["square"].sum(min_count=1))}
    ).reset_index()
    found = {}
    for name, mine in merged.groupby("cell", observed=True):
        series = mine.set_index("step").reindex(range(int(mine["step"].max()) + 1))
        losses, norms = series["loss"].to_numpy(), series["norm"].to_numpy()
        if str(name) in dtypes and np.isfinite(losses).any():
            found[str(name)] = Trajectory(losses, norms, dtypes[str(name)])
    return found


def divergence(reference: Trajectory, other: Trajectory) -> str:
    """The step at which `other` first leaves the envelope around `reference`, and the likely cause;
    empty if none."""
    found: list[tuple[int, str]] = []
    for quantity, envelope, one, two in (
        ("training loss", LOSS, reference.losses, other.losses),
        ("gradient norm", NORM, reference.norms, other.norms),
    ):
        apart = relative_difference(one, two)
        allowed = envelope.allowed(apart, reference.dtype)
        for step in np.flatnonzero(apart > allowed)[:1]:
            # What is computed at this step and not before it.
            likely = "earlier steps agree: optimizer step, order of the data, or kept state"
            if envelope is NORM:
                likely = "the losses agree: backward pass, or the scale of gradients"
            elif step == 0:
                likely = "nothing is learnt yet: initial values, data or forward pass"
            words = (
                f"{quantity} of step {step} is {two[step]:.7g}, of the sequential cell "
                f"{one[step]:.7g}: {apart[step]:.1e} apart, {allowed[step]:.1e} allowed; {likely}"
            )
            found.append((int(step), words))
    return min(found, key=lambda one: one[0], default=(0, ""))[1]


def compared_steps(reference: Trajectory, other: Trajectory) -> int:
    """Over how many training steps the losses of two cells can be compared."""
    apart = relative_difference(reference.losses, other.losses)
    allowed = LOSS.allowed(apart, reference.dtype)
    return int((np.isfinite(apart) & np.isfinite(allowed)).sum())


def relative_difference(reference: Series, other: Series) -> Series:
    """|reference - other| over the larger, as far as records have them, of the steps that both
    have; nan where one is missing."""
    steps = min(len(reference), len(other))
    reference, other = reference[:steps], other[:steps]
    known = np.abs(reference[np.isfinite(reference)])
    least = _SMALL * known[0] if known.size else 0.0
    larger = np.maximum(np.maximum(np.abs(reference), np.abs(other)), least)
    apart = np.maximum(np.abs(reference - other) - _RECORDED, 0.0)
    difference: Series = apart / np.where(larger > 0.0, larger, 1.0)
    return difference
