"""Whether evaluations of a whole graph are of each of its nodes, once over all replicas.

Which of them a replica has follows from no rule that could be worked out again, so each keeps what
it was given, and the audit puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnhpc.check.plain.order import Ids


@dataclass
class EvaluatedNodes:
    """Of one replica."""

    bits: bytes | None = None
    """Which nodes the last evaluation was of, a bit each; None before the first."""

    def cause(self, own: Ids, nodes: int) -> str | None:
        """What is wrong with an evaluation of `own`, int64 [n], of a graph of `nodes`; none if
        nothing is."""
        is_evaluated = np.zeros(nodes, dtype=np.bool_)
        is_evaluated[own[(own >= 0) & (own < nodes)]] = True
        before, self.bits = self.bits, np.packbits(is_evaluated).tobytes()
        if is_evaluated.sum() < len(own):
            return "a node is evaluated twice"
        if before not in (None, self.bits):
            return "other nodes are evaluated than before"
        return None


def not_each_once(bits: Sequence[bytes | None], nodes: int) -> str | None:
    """What is wrong with the evaluations of all replicas of a graph of `nodes`; none if nothing is,
    or where replicas do not tell."""
    known = [np.unpackbits(np.frombuffer(each, np.uint8)) for each in bits if each is not None]
    if len(known) < len(bits):
        return None
    times = np.stack(known).sum(axis=0, dtype=np.int64)[:nodes]
    never, often = int((times == 0).sum()), int((times > 1).sum())
    if not never and not often:
        return None
    return (
        f"of {nodes} nodes {often} are evaluated by several replicas, and {never} by none: the "
        "metrics are of others than they say"
    )
