"""The second reading of a graph: edges in order, each once, without loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.check.plain import graph as plain

NODES = 5
nodes = st.integers(0, NODES - 1)


@pytest.mark.parametrize("at_once", [2, 1 << 22])
@given(pairs=st.lists(st.tuples(nodes, nodes), max_size=12))
def test_edges_are_put_in_order_unless_they_are(at_once: int, pairs: list[tuple[int, int]]) -> None:
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    source, target = ends[:, 0].copy(), ends[:, 1].copy()
    labels = np.zeros(NODES, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "_AT_ONCE", at_once)
        found = plain._of(labels, {}, source, target, lambda node: np.zeros(1))
        again = plain._of(labels, {}, found.source, found.target, found.features)
    wanted = sorted({(t, s) for s, t in pairs if s != t})
    assert list(zip(found.target.tolist(), found.source.tolist(), strict=True)) == wanted
    assert again.source is found.source
