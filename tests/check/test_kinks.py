"""A score at the leaky ReLU's kink has two allowed gradients; nothing else is explained by it."""

from __future__ import annotations

import numpy as np
import pytest

from gnnhpc.check.compare_gradients import differences
from gnnhpc.check.kinks import explain_by_kinks
from gnnhpc.check.twin.pieces import Piece, graph_piece
from gnnhpc.check.twin.plain_model import PlainModel, plain_layer
from gnnhpc.check.twin.training import Array, TwinStep, train_step
from gnnhpc.data.graphs import load_graph
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.graphs.graph import IGNORED
from tests.tools.cells import gat

EXPERIMENT = gat(microbatches=1, model={"name": "gat", "dropout": 0.0})
LAYERS = [each.name for each in outline(EXPERIMENT)]
EPS = 2.0**-23
HEAD = 3


def twin() -> PlainModel:
    layers = [plain_layer(EXPERIMENT.model, each) for each in outline(EXPERIMENT)]
    return PlainModel(
        EXPERIMENT, outline(EXPERIMENT), [each for each in layers if each is not None]
    )


@pytest.fixture(scope="module")
def piece() -> Piece:
    return graph_piece(EXPERIMENT, load_graph(EXPERIMENT.data, None))


def edge_of(piece: Piece) -> int:
    """One into a node that is trained on, so that the loss depends on its score in each layer."""
    assert piece.graph is not None
    trained = piece.targets["train"][piece.graph.target] != IGNORED
    return int((trained & (piece.graph.source != piece.graph.target)).nonzero()[5])


def step(piece: Piece, parameters: dict[str, Array]) -> TwinStep:
    return train_step(twin(), [piece], parameters, 0, "log_probabilities")


def with_score(piece: Piece, score: float, layer: int) -> dict[str, Array]:
    """Initial values, but with one edge's score set by way of `att_dst`."""
    values = {name: v.double().numpy() for name, v in twin().initial().items()}
    name = f"layer{layer}.attention.att_dst"
    for _ in range(2):
        kink = step(piece, values).kinks[layer]
        moved = dict(values) | {name: values[name] * 1.0}
        moved[name][0, HEAD, 0] += 1.0
        slope = float((step(piece, moved).kinks[layer].scores - kink.scores)[edge_of(piece), HEAD])
        values = dict(values) | {name: values[name] * 1.0}
        values[name][0, HEAD, 0] += (score - float(kink.scores[edge_of(piece), HEAD])) / slope
    return values


@pytest.mark.parametrize("layer", [0, 1])
def test_the_other_slope_explains_a_difference(piece: Piece, layer: int) -> None:
    above, below = (step(piece, with_score(piece, s, layer)) for s in (1e-10, -1e-10))
    apart = differences(above.gradients, below.gradients, LAYERS)
    explained = explain_by_kinks(above.gradients, below, EPS)
    assert explained.kinks >= 1
    left = differences(above.gradients, explained.gradients, LAYERS)
    assert max(d.relative for d in left) < 1e-3 * max(d.relative for d in apart)
    assert max(d.relative for d in left) < 1e-7


def test_a_score_far_from_zero_explains_nothing(piece: Piece) -> None:
    above, below = (step(piece, with_score(piece, s, 0)) for s in (1e-2, -1e-2))
    assert explain_by_kinks(above.gradients, below, EPS).kinks == 0


def test_a_mistake_is_not_explained(piece: Piece) -> None:
    found = step(piece, with_score(piece, 1e-10, 0))
    wrong = {name: value * 1.001 for name, value in found.gradients.items()}
    explained = explain_by_kinks(wrong, found, EPS)
    left = differences(wrong, explained.gradients, LAYERS)
    assert max(d.relative for d in left) > 5e-4


def test_without_a_difference_nothing_changes(piece: Piece) -> None:
    found = step(piece, with_score(piece, 1e-10, 0))
    explained = explain_by_kinks(dict(found.gradients), found, EPS)
    assert explained.kinks == 0
    assert all(np.array_equal(explained.gradients[n], g) for n, g in found.gradients.items())
