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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.flags import Raised
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell
from gnnhpc.models.custom_model import is_custom
from gnnhpc.models.model_registry import model_class

Series = NDArray[np.float64]
"""One value a training step, from step 0; nan where a step has none."""


@dataclass(frozen=True)
class Envelope:
    """How far apart rounding may drive a quantity, relative: `later * growth ** step`."""

    first: float
    """The envelope at step 0, before any update."""
    later: float
    growth: float

    def allowed(self, apart: Series, dtype: str = "float32") -> Series:
        """What is allowed of each step's difference `apart`, nan where so much is allowed that a
        comparison means nothing."""
        scale = _FLOAT64 if dtype == "float64" else 1.0
        fixed = scale * self.later * self.growth ** np.arange(len(apart), dtype=np.float64)
        fixed[:1] = scale * self.first
        largest = np.fmax.accumulate(np.concatenate(([0.0], apart[:-1]))) if len(apart) else apart
        later = np.maximum(_JUMP * np.nan_to_num(largest), scale * self.later)
        allowed = np.where(fixed < _MEANINGLESS, fixed, later)
        return np.where(allowed < _MEANINGLESS, allowed, np.nan)


LOSS = Envelope(first=1e-5, later=5e-4, growth=1.6)
NORM = Envelope(first=4e-4, later=5e-3, growth=1.6)
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


@dataclass(frozen=True)
class Equivalence:
    """What comparing the equivalent cells of a run found."""

    divergences: Mapping[str, str] = field(default_factory=dict)
    """Cells that leave the envelope, each with the first step that does and its likely cause."""
    suspects: Mapping[str, str] = field(default_factory=dict)
    """The same of custom models in other micro-batches than the sequential cell, whose BatchNorm
    may be the cause."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Over how many training steps each cell was compared with another configuration's."""
    only_repeats: tuple[str, ...] = ()
    """Cells that only repeats of their own configuration are equivalent to."""
    without_sequential: tuple[str, ...] = ()
    """Cells that were not compared, as no valid sequential cell is equivalent to them."""


def compare_equivalent_cells(
    manifest: Sequence[Cell], ranks: pd.DataFrame, cells: pd.DataFrame, raised: Iterable[Raised]
) -> Equivalence:
    """Compare the valid cells of a run; `ranks` are its step records.

    A custom model that validation could not compare may use random numbers of its process, so that
    its cells are in no group.
    """
    unsure = {one.cell for one in raised if one.verdict == "inconclusive"}
    valid = set(cells.loc[cells["valid"].astype(bool), "cell"].astype(str))
    groups: dict[str, list[Cell]] = {}
    for cell in manifest:
        custom = is_custom(cell.experiment.model.name)
        if cell.id in valid and not (custom and cell.id in unsure):
            groups.setdefault(equivalence_key(cell.experiment), []).append(cell)
    learnt = trajectories(ranks, {cell.id: cell.experiment.dtype for cell in manifest})
    divergences: dict[str, str] = {}
    suspects: dict[str, str] = {}
    steps: dict[str, int] = {}
    only_repeats: list[str] = []
    without: list[str] = []
    for group in groups.values():
        members = [cell for cell in group if cell.id in learnt]
        reference = min(filter(_is_sequential, members), key=_plainest_first, default=None)
        if reference is None:
            without += [cell.id for cell in members]
            continue
        configurations = {_configuration(cell.experiment) for cell in members}
        if len(configurations) == 1:
            only_repeats += [cell.id for cell in members]
        for cell in members:
            cause = divergence(learnt[reference.id], learnt[cell.id])
            if cause and _may_be_batchnorm(cell, reference):
                suspects[cell.id] = (
                    f"{cause}, halo rows that the model reads wrongly, state that it keeps between "
                    f"micro-batches, or its BatchNorm (sequential cell: {reference.id})"
                )
            elif cause:
                divergences[cell.id] = f"{cause} (sequential cell: {reference.id})"
            if _configuration(cell.experiment) != _configuration(reference.experiment):
                steps[cell.id] = compared_steps(learnt[reference.id], learnt[cell.id])
    return Equivalence(divergences, suspects, steps, tuple(only_repeats), tuple(without))


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
    by_microbatch = _uses_batchnorm(experiment)
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


def _uses_batchnorm(experiment: Experiment) -> bool:
    known = model_class(experiment.model.name)
    return known is None or known.uses_batchnorm


def _configuration(experiment: Experiment) -> str:
    """The experiment but for its repeat, and for settings that change its records alone."""
    return experiment.model_copy(update={"repeat": 0, "spans": False}).id


def _may_be_batchnorm(cell: Cell, reference: Cell) -> bool:
    """Whether a custom model's cells share other rows in a micro-batch."""
    one, other = cell.experiment, reference.experiment
    return is_custom(one.model.name) and one.total_chunks != other.total_chunks


def _is_sequential(cell: Cell) -> bool:
    return cell.experiment.layout.world_size == 1


def _plainest_first(cell: Cell) -> tuple[bool, int, int]:
    """Reference layers before others, then fewer micro-batches, then earlier repeats."""
    implementation = getattr(cell.experiment.model, "implementation", None)
    return implementation != "reference", cell.experiment.microbatches, cell.experiment.repeat


def trajectories(ranks: pd.DataFrame, dtypes: Mapping[str, str]) -> dict[str, Trajectory]:
    """The trajectory of each cell with training losses.

    The loss is the last stage's. The norm is the root of the sum of squares over the stages of the
    first replica, as all replicas have the same gradient.
    """
    train = ranks[(ranks["phase"] == "train").to_numpy()]
    square = np.where(train["replica"] == 0, train["grad_norm"] ** 2, np.nan)
    table = train[["cell", "step", "loss"]].assign(square=square)
    grouped = table.groupby(["cell", "step"], observed=True)
    merged = pd.DataFrame(
        {"loss": grouped["loss"].max(), "norm": np.sqrt(grouped["square"].sum(min_count=1))}
    ).reset_index()
    found = {}
    for name, mine in merged.groupby("cell", observed=True):
        steps = mine["step"].to_numpy()
        series = np.full((2, int(steps.max()) + 1), np.nan)
        series[:, steps] = mine[["loss", "norm"]].to_numpy().T
        if np.isfinite(series[0]).any():
            found[str(name)] = Trajectory(series[0], series[1], dtypes.get(str(name), "float32"))
    return found


def divergence(reference: Trajectory, other: Trajectory) -> str:
    """The step at which `other` first leaves the envelope around `reference`, and why; empty if
    none."""
    found = []
    for quantity, envelope, one, two in (
        ("training loss", LOSS, reference.losses, other.losses),
        ("gradient norm", NORM, reference.norms, other.norms),
    ):
        apart = relative_difference(one, two)
        allowed = envelope.allowed(apart, reference.dtype)
        outside = np.flatnonzero(apart > allowed)
        if outside.size:
            step = int(outside[0])
            words = (
                f"{quantity} of step {step} is {two[step]:.7g}, of the sequential cell "
                f"{one[step]:.7g}: {apart[step]:.1e} apart, {allowed[step]:.1e} allowed"
            )
            found.append((step, quantity, words))
    if not found:
        return ""
    step, quantity, words = min(found, key=lambda one: one[0])
    return f"{words}; {_likely_cause(quantity, step)}"


def _likely_cause(quantity: str, step: int) -> str:
    """What is computed at this step and not before it."""
    if quantity == "gradient norm":
        return "the losses agree: backward pass, or the scale of gradients"
    if step == 0:
        return "nothing is learnt yet: initial values, data or forward pass"
    if step == 1:
        return "loss and gradient of step 0 agree: optimizer step, or the second mini-batch"
    return "earlier steps agree: order of the data, an optimizer step, or kept state"


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
