"""How far what ranks captured is from what the reference expects, and what it looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.batches import Activation, Array, Ids, ReferenceBatch
from gnnhpc.validation.steps.captured_steps import (
    CapturedActivation,
    CapturedOutput,
    Place,
    array_of,
    in_words,
    sketch,
)

LAYER_KEEPS_STATE = (
    ": a new copy of the layer gives another output for this micro-batch, so the layer keeps "
    "something from an earlier one (as PyG's cached=True keeps edges), or it reads rows that are "
    "not its own (x[-n:] instead of x[:n], a mean over all rows)"
)


When = tuple[Phase, int]
"""A phase and a step in it."""
CLOSE = 1e-6
"""A factor is recognised where it explains all but this share of a difference."""


def where_in(when: When, place: Place) -> str:
    return f"{when[0]} step {when[1]}, {in_words(place)}"


def relative_difference(actual: Array | None, expected: Array, least: float = 0.0) -> float:
    """|actual - expected| / max(|expected|, least); infinite where they cannot be compared."""
    if actual is None or actual.shape != expected.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        away = float(np.linalg.norm(np.where(same, 0.0, actual - expected)))
    scale = max(float(np.linalg.norm(expected[np.isfinite(expected)])), least)
    return away / scale if scale else away


def sketch_difference(
    found: CapturedActivation, batch: ReferenceBatch, x: Activation, least: float
) -> tuple[float, str]:
    """The relative difference of one captured activation from the expected one, `x`, and why it
    cannot be compared.

    `least` is the root mean square of a row below which its size counts as that.
    """
    actual, expected, rows = found.sketch, sketch(x), np.arange(len(x))
    if found.nodes is not None:
        mine, rows = _rows(found.nodes, batch, len(expected))
        if (rows < 0).any():
            return math.inf, f"{int((rows < 0).sum())} rows are of other nodes than expected"
        actual = actual[mine]
    if len(actual) != len(rows):
        return math.inf, f"{len(actual)} rows where {len(rows)} are expected"
    # A sketch of uniform numbers has two thirds of a row's square.
    square = max(float(row_squares(x)[rows].sum()), least**2 * len(rows))
    away, scale = float(np.linalg.norm(actual - expected[rows])), math.sqrt(2.0 / 3.0 * square)
    return away / scale if scale else away, ""


def _rows(nodes: Ids, batch: ReferenceBatch, count: int) -> tuple[Ids, Ids]:
    """The rows that hold nodes, without padding, and their rows among the batch's first `count`.

    Row -1 stands for a node that the batch has not.
    """
    assert batch.nodes is not None
    known = batch.nodes[:count].numpy()
    real = np.flatnonzero(nodes >= 0)
    if not len(known):
        return real, np.full(len(real), -1)
    order = np.argsort(known, kind="stable")
    place = np.searchsorted(known[order], nodes[real]).clip(max=len(known) - 1)
    return real, np.where(known[order[place]] == nodes[real], order[place], -1)


def row_squares(x: Activation) -> Array:
    """Each row's squared norm."""
    if isinstance(x, SparseRows):
        squared = x.with_values(x.values.square()).to_csr()
        return array_of(squared @ torch.ones(x.width, dtype=torch.float64))
    return array_of(x.detach().flatten(1).double().square().sum(1))


def root_mean_square(x: Activation) -> float:
    """Of the norms of the rows; 0 for a micro-batch that has no rows."""
    squares = row_squares(x)
    return math.sqrt(float(squares.mean())) if len(squares) else 0.0


def wrong_targets(found: CapturedOutput, batch: ReferenceBatch) -> str:
    """What differs between a micro-batch's targets and the batch's, in words; empty if nothing."""
    for split, labels in found.targets.items():
        actual, expected = labels, batch.targets[split].numpy()
        if actual.ndim == 2:
            assert found.nodes is not None
            assert batch.nodes is not None
            actual = np.column_stack((found.nodes[actual[:, :2]], actual[:, 2]))
            nodes = batch.nodes.numpy()
            expected = np.column_stack((nodes[expected[:, :2]], expected[:, 2]))
        elif found.nodes is not None:
            mine, rows = _rows(found.nodes[: len(actual)], batch, len(expected))
            if (rows < 0).any():
                return f"{split} targets are of other nodes than expected"
            actual, expected = actual[mine], expected[rows]
        if actual.shape != expected.shape:
            return f"{len(actual)} {split} targets where {len(expected)} are expected"
        wrong = int((actual != expected).any(axis=tuple(range(1, actual.ndim))).sum())
        if wrong:
            return f"{wrong} of {len(actual)} {split} targets are not those of its inputs"
    return ""


def explain_gradients(
    actual: Mapping[str, Array],
    expected: Mapping[str, Array],
    last: str,
    stage_of: Mapping[str, int],
) -> str:
    """What wrong gradients look like; `last` is the last layer with one, where backward goes wrong.

    They are zero on a whole stage, or all are the expected ones times a factor, or one layer's
    differ. `stage_of` has the stage of each parameter.
    """
    ours = {name: actual.get(name, np.zeros_like(value)) for name, value in expected.items()}
    planned, reached = (
        {stage_of[name] for name, value in gradients.items() if value.any()}
        for gradients in (expected, ours)
    )
    if planned - reached:
        without = ", ".join(map(str, sorted(planned - reached)))
        return f"all gradients of stage {without} are zero: backward does not reach it"
    factor = _factor(ours, expected)
    if factor is not None:
        return f"all gradients are {factor:.6g} times the expected"
    layers = {name: value for name, value in expected.items() if name.startswith(f"{last}.")}
    factor = _factor(ours, layers)
    differs = "differs" if factor is None else f"is {factor:.6g} times the expected"
    worst = max(layers, key=lambda name: float(np.linalg.norm(ours[name] - layers[name])))
    return (
        f"the gradient of {last} {differs}, though its output and the layers after it agree; most "
        f"of it in {worst}"
    )


def _factor(ours: Mapping[str, Array], expected: Mapping[str, Array]) -> float | None:
    """The factor that explains all differences; None where there is none."""
    one, other = (
        np.concatenate([values[name].ravel() for name in expected]) for values in (ours, expected)
    )
    square = float(other @ other)
    if not square or not np.isfinite(one).all():
        return None
    factor = float(one @ other) / square
    rest = float(np.linalg.norm(one - factor * other))
    differs = abs(factor - 1.0) > CLOSE
    return factor if differs and rest < CLOSE * float(np.linalg.norm(one)) else None
