"""Whether a block's edges by source, which backward passes go by, are its edges by target."""

from __future__ import annotations

import numpy as np

from gnnhpc.graphs.blocks import Block


def by_source_cause(block: Block) -> str | None:
    """What is wrong with them; none if nothing is, or if nobody has asked for them."""
    by = vars(block).get("transpose")
    if by is None:
        return None
    source, target = block.source.cpu().numpy(), block.target.cpu().numpy()
    order, rows = by.edge.cpu().numpy(), by.indptr.cpu().numpy()
    counts = np.bincount(source, minlength=block.rows_in)
    if rows[0] != 0 or not np.array_equal(np.diff(rows), counts):
        return "has other numbers of edges by source than by target"
    if len(order) != len(source) or (order < 0).any() or (order >= len(source)).any():
        return "has other edges by source than by target"
    sources = source[order]
    # In a row they stand as they do by target, so that none stands there twice.
    ascending = (np.diff(sources) > 0) | ((np.diff(sources) == 0) & (np.diff(order) > 0))
    if not ascending.all() or not np.array_equal(by.target.cpu().numpy(), target[order]):
        return "has other edges by source than by target"
    return None
