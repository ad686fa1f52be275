"""What ranks were given: labels, samples, edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnnhpc.check.observations import RankObservations
from gnnhpc.records.schema import Check


def labels(observations: Sequence[RankObservations]) -> Check:
    wrong = max(each.mismatched_batches for each in observations)
    if wrong:
        return Check(
            "labels",
            "invalid",
            f"{wrong} mini-batches that are not the same on all stages: labels or edges are not "
            "those of the inputs",
            {"mismatched": wrong},
        )
    return Check("labels", "ok", "labels belong to inputs in every mini-batch", {})


def samples(observations: Sequence[RankObservations]) -> Check:
    repeated = max(each.repeated_samples for each in observations)
    if repeated:
        return Check(
            "samples",
            "invalid",
            f"{repeated} samples were seen more than once in an epoch: replicas are not sharded",
            {"repeated": repeated},
        )
    unused = max(each.unused_samples for each in observations)
    if unused:
        return Check(
            "samples",
            "invalid",
            f"{unused} samples were not used in an epoch",
            {"unused": unused},
        )
    return Check("samples", "ok", "no sample was seen twice in an epoch", {})


def edges(graph: dict[str, Any]) -> Check:
    if graph["mode"] == "graphs":
        return Check("edges", "ok", "mini-batches are of whole graphs, which lose no edges", {})
    if "edges_kept" not in graph:
        most = ", ".join(str(each) for each in graph["fanouts"])
        return Check("edges", "ok", f"neighbours are sampled, at most {most} of a node", {})
    kept = float(graph["edges_kept"])
    detail = f"{graph['mode']} chunks kept {kept:.1%} of the edges"
    if kept < 1.0:
        return Check("edges-lost", "suspect", detail, {"edges_kept": kept})
    return Check("edges", "ok", detail, {"edges_kept": kept})
