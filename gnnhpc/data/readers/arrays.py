"""What readers of published graphs share: edges in order, sizes checked. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.core.errors import InputError
from gnnhpc.data.cache import Arrays
from gnnhpc.data.generators import distinct
from gnnhpc.data.published import PublishedGraph

Ints = npt.NDArray[np.int64]


def ordered_edges(source: Ints, target: Ints, nodes: int) -> Ints:
    """int64 [2, E] sorted by (target, source), each edge once, without self-loops."""
    key = distinct((target * nodes + source)[source != target])
    return np.stack([key % nodes, key // nodes])


def check_sizes(config: PublishedGraph, arrays: Arrays, folder: Path) -> None:
    """Raises InputError where sizes are not the published ones, which models are built for."""
    facts = config.facts()
    labels, edges = arrays["labels"], arrays["edges"]
    checks: list[tuple[str, Any, str, bool]] = [
        ("nodes", len(labels), str(facts.nodes), len(labels) == facts.nodes),
        (
            "labels",
            f"{labels.min()} to {labels.max()}",
            f"0 to {facts.classes - 1}",
            labels.min() >= 0 and labels.max() < facts.classes,
        ),
        (
            "edges",
            edges.shape[1],
            "edges between its nodes",
            edges.size > 0 and edges.min() >= 0 and edges.max() < facts.nodes,
        ),
    ]
    if "columns" in arrays and len(arrays["columns"]):
        found = arrays["columns"].max() + 1
        checks.append(("features", found, f"{facts.features} columns", found <= facts.features))
    if "dense" in arrays:
        shape, wanted = list(arrays["dense"].shape), [facts.nodes, facts.features]
        checks.append(("features", shape, str(wanted), shape == wanted))
    for key, found, allowed, good in checks:
        if not good:
            raise InputError(folder, key, found, f"{allowed}; fetch the files again")
