"""A small graph treated as one that is too large to be computed at once."""

from __future__ import annotations


def few_edges_at_once() -> None:
    """Evaluations go layer by layer above 1,500 edges.

    For processes of their own: nothing puts it back.
    """
    from gnnhpc.batches.sampled import sampled_batches
    from gnnhpc.graphs import layerwise

    layerwise.EDGES_AT_ONCE = sampled_batches.EDGES_AT_ONCE = 1_500
