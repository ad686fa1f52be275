"""Sketches of activations, and labels, held against those of the twin's pieces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.check.capture import SKETCHES, Ids, SeenActivation, SeenTargets, signs, sketch
from gnnhpc.check.outputs_apart import bounded
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.scene import SparseInput
from gnnhpc.records.schema import Phase

Rows = npt.NDArray[np.float64]


class Place(NamedTuple):
    """What one micro-batch computed of the twin's output."""

    piece: int
    rows: Ids
    """Of the piece's output."""


class ActivationDifference(NamedTuple):
    """Of one micro-batch, relative to what is expected of it."""

    relative: float
    where: str
    place: Place | None = None
    """None where it has not the rows that are expected, or nothing was computed."""


def compare_activations(
    seen: Sequence[SeenActivation],
    phase: Phase,
    step: int,
    layer: str,
    pieces: Sequence[Piece],
    twin: Sequence[Tensor | SparseInput],
) -> list[ActivationDifference]:
    """Of each micro-batch, the largest first; `twin` has the same layer's output for each piece.

    A missing sketch is infinitely wrong.
    """
    sketches = [(_sketch(x), _squares(x)) for x in twin]
    found = [a for a in seen if (a.phase, a.step, a.layer) == (phase, step, layer)]
    if not found:
        return [ActivationDifference(math.inf, "nothing was computed")]
    differences = []
    for each in found:
        number = _piece_of(each.replica, each.microbatch, pieces)
        expected, squares = sketches[number]
        ours, rows = each.sketch, _rows(each.ids, pieces[number], len(expected))
        if rows is None or each.ids is None:
            rows = np.arange(len(expected))
        else:
            ours = ours[each.ids >= 0]
        where = f"replica {each.replica}, micro-batch {each.microbatch}"
        if len(ours) != len(rows) or ours.shape[1:] != expected.shape[1:]:
            words = f"{where}: {len(ours)} rows of {len(rows)}"
            differences.append(ActivationDifference(math.inf, words))
            continue
        relative = _relative(ours, expected[rows], squares[rows])
        relative = relative if math.isfinite(relative) else math.inf
        differences.append(ActivationDifference(relative, where, Place(number, rows)))
    return sorted(differences, key=lambda each: -each.relative)


def difference_at(
    place: Place,
    ours: Sequence[Tensor | SparseInput],
    exact: Sequence[Tensor | SparseInput],
) -> float:
    """The relative difference of one layer's outputs in one micro-batch, of its numbers or of their
    sketches, whichever is larger; 0 for sparse ones.

    An error that all rows share may be several times as large in a sketch, by which a run's is
    known; and that of a chunk's few rows, of a whole graph's, may be many times as large as all
    rows'.
    """
    a, b = ours[place.piece], exact[place.piece]
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return 0.0
    a, b = (bounded(x[place.rows].double()) for x in (a, b))
    if float(b.norm()) == 0:
        return 0.0
    of_sketches = _relative(_sketch(a), _sketch(b), _squares(b))
    return max(float((a - b).norm() / b.norm()), of_sketches)


def _relative(ours: Rows, expected: Rows, squares: Rows) -> float:
    """Of sketches; `squares` are those of the rows that are expected."""
    scale = math.sqrt(SKETCHES * float(squares.sum()))
    away = float(np.linalg.norm(ours - expected))
    return away / scale if scale else away


def repeated_forwards(
    seen: Sequence[SeenActivation], phase: Phase, step: int, layer: str, places: int
) -> str:
    """What is wrong with how often a layer ran in a step; empty if once a micro-batch."""
    counts = Counter(
        (a.replica, a.microbatch)
        for a in seen
        if (a.phase, a.step, a.layer) == (phase, step, layer)
    )
    often = [place for place, count in counts.items() if count > 1]
    if often:
        return f"ran more than once for replica {often[0][0]}, micro-batch {often[0][1]}"
    return "" if len(counts) == places else f"ran for {len(counts)} of {places} micro-batches"


def compare_targets(
    seen: Sequence[SeenTargets], phase: Phase, step: int, pieces: Sequence[Piece]
) -> str:
    """The first micro-batch whose labels are not the twin's, in words; empty if none."""
    found = [t for t in seen if (t.phase, t.step) == (phase, step)]
    for each in found:
        number = _piece_of(each.replica, each.microbatch, pieces)
        for split, given in each.targets.items():
            if given.ndim == 2 and split not in pieces[number].targets:
                # Of links that are judged: the twin's piece is all of them.
                continue
            ours, expected = given, pieces[number].targets[split].numpy()
            if given.ndim == 2:
                ours, expected = _as_nodes(ours, each.ids), _as_nodes(expected, pieces[number].ids)
            elif each.ids is not None:
                ids = each.ids[: len(ours)]
                ours, expected = ours[ids >= 0], expected[_rows(ids, pieces[number], len(expected))]
            wrong = len(ours)
            if ours.shape == expected.shape:
                wrong = int((ours != expected).any(tuple(range(1, ours.ndim))).sum())
            if wrong or ours.shape != expected.shape:
                return (
                    f"{wrong} of {len(ours)} {split} labels of replica {each.replica}, "
                    f"micro-batch {each.microbatch} are not those of its inputs"
                )
    return "" if found else "no labels were given"


def _as_nodes(pairs: Ids, ids: Ids | Tensor | None) -> Ids:
    """Targets of links, [n, 3], with nodes in place of their rows."""
    assert ids is not None
    return np.column_stack((np.asarray(ids)[pairs[:, :2]], pairs[:, 2]))


def _piece_of(replica: int, microbatch: int, pieces: Sequence[Piece]) -> int:
    """The number of a micro-batch's piece; a whole graph is one piece."""
    if len(pieces) == 1:
        return 0
    places = [(piece.replica, piece.microbatch) for piece in pieces]
    return places.index((replica, microbatch))


def _rows(ids: Ids | None, piece: Piece, count: int) -> Ids | None:
    """Which of the piece's `count` rows are these nodes'; None for those whose rows are in order.

    A node that the twin has not drawn has no row there.
    """
    if ids is None:
        return None
    real = ids[ids >= 0]
    if piece.graph is not None:
        return real
    drawn = piece.context is not None and piece.context.chunk.sampled
    if not (piece.sampled or drawn):
        # A chunk of the run: its rows as they are, less the padding.
        return np.flatnonzero(ids >= 0)
    assert piece.ids is not None
    known: Ids = piece.ids[:count].numpy()
    order = np.argsort(known)
    rows: Ids = order[np.searchsorted(known[order], real).clip(max=max(len(known) - 1, 0))]
    found: Ids = rows[known[rows] == real]
    return found


def _sketch(x: Tensor | SparseInput) -> Rows:
    if isinstance(x, Tensor):
        return sketch(x).numpy()
    terms = x.value[:, None] * signs(x.shape[1])[x.column]
    return torch.zeros(x.shape[0], SKETCHES).double().index_add(0, x.row, terms).numpy()


def _squares(x: Tensor | SparseInput) -> Rows:
    """Each row's squared norm."""
    if isinstance(x, Tensor):
        return bounded(x.detach().flatten(1).double()).square().sum(1).numpy()
    return torch.zeros(x.shape[0]).double().index_add(0, x.row, x.value.square()).numpy()
