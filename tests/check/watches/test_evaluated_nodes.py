"""Whether evaluations of a whole graph are of each node once, over all replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gnnhpc.check.watches.evaluated_nodes import EvaluatedNodes, not_each_once

NODES = 19


def bits(*nodes: int) -> bytes:
    kept = EvaluatedNodes()
    assert kept.cause(np.array(nodes, dtype=np.int64), NODES) is None
    assert kept.bits is not None
    return kept.bits


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((range(9), range(9, NODES)), None),
        ((range(NODES),), None),
        ((range(9), range(9)), "of 19 nodes 9 are evaluated by several replicas, and 10 by none"),
        ((range(9), range(10, NODES)), "of 19 nodes 0 are evaluated by several replicas, and 1 by"),
        ((range(10), range(9, NODES)), "of 19 nodes 1 are evaluated by several replicas, and 0 by"),
    ],
)
def test_replicas_share_all_nodes_out(parts: Sequence[range], words: str | None) -> None:
    found = not_each_once([bits(*part) for part in parts], NODES)
    assert (found is None) == (words is None)
    assert (words or "") in (found or "")


def test_what_a_replica_does_not_tell_is_not_judged() -> None:
    assert not_each_once([bits(0), None], NODES) is None


def test_an_evaluation_has_each_node_once_and_the_same_ones_every_time() -> None:
    kept = EvaluatedNodes()
    assert kept.cause(np.array([3, 4, 3]), NODES) == "a node is evaluated twice"
    kept = EvaluatedNodes()
    assert kept.cause(np.array([3, 4]), NODES) is None
    assert kept.cause(np.array([4, 3]), NODES) is None
    assert kept.cause(np.array([4, 5]), NODES) == "other nodes are evaluated than before"
