"""The twin's own pairs of links and negatives, and their losses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnnhpc.check.plain.links import PlainLinks
from gnnhpc.check.plain.order import Ids
from gnnhpc.check.twin.backward_rounding import BackwardRounding
from gnnhpc.experiment.experiment import Experiment


def rows_of_pairs(pairs: Ids, links: int, ids: Tensor) -> Tensor:
    """Targets int64 [n, 3]: of each pair the rows of its nodes among `ids`, which ascend, and 1 for
    the first `links` of them, 0 for the others."""
    rows = torch.searchsorted(ids, torch.from_numpy(pairs))
    labels = torch.zeros(len(pairs), dtype=torch.int64)
    labels[:links] = 1
    return torch.column_stack((rows, labels))


def pair_scores(embeddings: Tensor, pairs: Tensor) -> Tensor:
    """float64 [n]: the products of two rows each."""
    one, other, _ = pairs.unbind(1)
    return torch.einsum("nk,nk->n", embeddings.double()[one], embeddings.double()[other])


def pair_losses(
    embeddings: Tensor, pairs: Tensor, rounding: BackwardRounding | None = None
) -> Tensor:
    """Binary cross-entropy of each pair, float64 [n]: -log of the sigmoid that its label has.

    The derivative by the score is the sigmoid less the label, one term from each.
    """
    found = pair_scores(embeddings, pairs)
    label = pairs[:, 2].double()
    losses = torch.logaddexp(torch.zeros_like(found), found) - label * found
    if rounding is None:
        return losses
    return losses + rounding.of(found, torch.sigmoid(found) + label)


def plain_links(experiment: Experiment, edges: Tensor, nodes: int) -> PlainLinks | None:
    """Of an experiment that learns links, of a graph with these edges, int64 [2, E]."""
    if experiment.task is None:
        return None
    source, target = edges.numpy()
    return PlainLinks.of(experiment, source.astype(np.int64), target.astype(np.int64), nodes)
