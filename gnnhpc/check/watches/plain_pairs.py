"""Loss, ranks and gradients of links worked out from embeddings, to hold the task's against.

Pairs are [n, 3]: rows of two nodes, and 1 for a link or 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gnnhpc.check.watches.plain_tally import Ids, PlainSum, plain_gradient, plain_tally
from gnnhpc.check.watches.sum_rounding import sum_rounding, unit
from gnnhpc.models.model import OutputKind
from gnnhpc.records.schema import Phase

Values = npt.NDArray[np.float64]


class _Scores(NamedTuple):
    value: Values
    error: Values
    """How far rounding may move each: a sum of as many products as an embedding is wide."""


def plain_loss(outputs: Sequence[Tensor], labels: Sequence[Ids], kind: OutputKind) -> PlainSum:
    """The summed loss of a mini-batch, of classes or of links."""
    if kind != "embeddings":
        tally = plain_tally(outputs, labels, kind)
        return PlainSum(tally.loss, tally.loss_error, tally.labelled)
    value = error = 0.0
    for output, pairs in zip(outputs, labels, strict=True):
        scores = _scores(output, pairs)
        losses = _softplus(np.where(pairs[:, 2] == 1, -scores.value, scores.value))
        value += float(losses.sum())
        error += float(scores.error.sum()) + _added_up(output, scores.value, losses)
    return PlainSum(value, error, sum(len(pairs) for pairs in labels))


def loss_gradient(
    output: Tensor, labels: Ids, kind: OutputKind, scale: float
) -> tuple[Values, Values]:
    """Of `scale` times the summed loss of classes or links by the outputs, and its rounding."""
    if kind != "embeddings":
        return plain_gradient(output, labels, kind, scale)
    return _pair_gradient(output, labels, scale)


def _pair_gradient(output: Tensor, pairs: Ids, scale: float) -> tuple[Values, Values]:
    """By the embeddings [rows, width].

    Of a pair each end's is the other's embedding times the score's sigmoid less the label.
    """
    given = _double(output)
    scores = _scores(output, pairs)
    slope = 1 / (1 + np.exp(-scores.value)) - pairs[:, 2]
    gradient, error = np.zeros(given.shape), np.zeros(given.shape)
    terms = np.bincount(pairs[:, :2].ravel(), minlength=len(given))
    for end, other in ((0, 1), (1, 0)):
        rows, beside = pairs[:, end], given[pairs[:, other]]
        np.add.at(gradient, rows, slope[:, None] * beside)
        # A sigmoid's slope is a quarter at most.
        off = scores.error / 4 + unit(output) * (8 + terms[rows])
        np.add.at(error, rows, off[:, None] * np.abs(beside))
    return scale * gradient, scale * error


def link_metrics(
    phase: Phase,
    names: Iterable[str],
    outputs: Sequence[Tensor],
    pairs_of: Callable[[str], Sequence[Ids]],
    hits: int,
) -> dict[str, PlainSum]:
    """Of a mini-batch, the metrics with these names; `pairs_of` a split's, one a micro-batch."""
    if phase == "train":
        return {name: plain_loss(outputs, pairs_of(phase), "embeddings") for name in names}
    found: dict[str, PlainSum] = {}
    for name in names:
        split, _, kind = name.rpartition("_")
        sums = [
            _judged(output, pairs, kind, hits)
            for output, pairs in zip(outputs, pairs_of(split or phase), strict=True)
        ]
        value, error, count = zip(*sums, strict=True)
        found[name] = PlainSum(sum(value), sum(error), sum(count))
    return found


def _judged(output: Tensor, pairs: Ids, kind: str, hits: int) -> tuple[float, float, int]:
    """A metric's sum over the links of one micro-batch, how far it may be off, and the links."""
    scores, is_link = _scores(output, pairs), pairs[:, 2] == 1
    links, pool = (_Scores(*(part[which] for part in scores)) for which in (is_link, ~is_link))
    count, size = len(links.value), len(pool.value)
    if kind == "loss":
        of_pool = _softplus(pool.value)
        losses = (_softplus(-links.value) + of_pool.mean()) / 2
        error = (links.error.sum() + count * pool.error.mean()) / 2
        error += _added_up(output, links.value, losses)
        # The pool's mean is added up once, and stands in every link's loss.
        error += count / size * sum_rounding(output, size, float(of_pool.sum()))
        return float(losses.sum()), float(error), count
    if kind.startswith("hits@"):
        best = np.sort(pool.value)[-hits], np.sort(pool.value - pool.error)[-hits]
        surest = np.sort(pool.value + pool.error)[-hits]
        right = int((links.value > best[0]).sum())
        most = int((links.value + links.error > best[1]).sum())
        fewest = int((links.value - links.error > surest).sum())
        return float(right), float(max(most - right, right - fewest)), count
    value, lowest, highest = (
        _ranked(kind, size, *each)
        for each in (
            (_less(pool.value, links.value), _less(-pool.value, -links.value)),
            _counts(pool, links, least=True),
            _counts(pool, links, least=False),
        )
    )
    off = float(max(highest - value, value - lowest, 0.0))
    return value, off + 1e-12 * count, count


def _counts(pool: _Scores, links: _Scores, *, least: bool) -> tuple[Ids, Ids]:
    """Of the pool how many are below and above each link, where rounding makes the most of the
    one and the least of the other."""
    sign = 1 if least else -1
    low, high = links.value - sign * links.error, pool.value + sign * pool.error
    return _less(high, low), _less(-high, -low)


def _less(pool: Values, links: Values) -> Ids:
    """Of each link, how many of the pool are less."""
    return np.searchsorted(np.sort(pool), links, side="left").astype(np.int64)


def _ranked(kind: str, size: int, below: Ids, above: Ids) -> float:
    """Ties count half."""
    if kind == "auc":
        return float(((size + below - above) / 2).sum()) / size
    rank = 1 + (size + above - below) / 2
    return float((1 / rank).sum())


def _scores(output: Tensor, pairs: Ids) -> _Scores:
    one, other = (_double(output)[pairs[:, end]] for end in (0, 1))
    reach = np.abs(one * other).sum(axis=1)
    return _Scores((one * other).sum(axis=1), unit(output) * (one.shape[1] + 2) * reach)


def _softplus(x: Values) -> Values:
    found: Values = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return found


def _added_up(output: Tensor, scores: Values, losses: Values) -> float:
    """What adding losses up may lose, and computing each."""
    sizes = float(np.abs(scores).sum() + np.abs(losses).sum())
    added = sum_rounding(output, len(scores), float(np.abs(losses).sum()))
    return unit(output) * 8 * sizes + added


def _double(output: Tensor) -> Values:
    return np.asarray(output.detach().cpu().numpy(), dtype=np.float64)
