"""Sets of graphs in TU's text files, through PyG's own class, beside the data and never in it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
from torch_geometric.datasets import TUDataset

from gnnhpc.core.errors import InputError
from gnnhpc.data.cache import Arrays
from gnnhpc.data.graph_sets import TuGraphs
from gnnhpc.data.readers.arrays import ordered_edges

_FETCH_AGAIN = "the set as published; fetch its files again"


def read_tu(config: TuGraphs, raw: list[Path], work: Path) -> Arrays:
    """The arrays of a set; PyG works in `work`, a new folder, on links to `raw`.

    Raises InputError for damaged files, and for sizes that are not the published ones.
    """
    copy = config.files().directory(work)
    copy.mkdir(parents=True)
    for path in raw:
        (copy / path.name).symlink_to(path.resolve())
    folder = raw[0].parent
    _check_indicator(config, next(p for p in raw if p.name.endswith("_graph_indicator.txt")))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = TUDataset(str(work), config.set.folder)
            arrays = _arrays(found)
    except Exception as error:
        # Damaged content can fail anywhere inside PyG, in any way.
        reason = f"damaged files ({type(error).__name__}: {error})"
        raise InputError(folder, None, reason, _FETCH_AGAIN) from error
    _check(config, arrays, folder)
    return arrays


def _check_indicator(config: TuGraphs, path: Path) -> None:
    """Each node's graph, from 1, in their order: PyG takes that for granted and does not look."""
    try:
        graph = np.loadtxt(path, dtype=np.int64, ndmin=1)
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise InputError(path, None, f"unreadable ({error})", _FETCH_AGAIN) from None
    known = config.set
    if len(graph) != known.nodes:
        raise InputError(path, "nodes", len(graph), f"{known.nodes}; fetch the files again")
    steps = np.diff(graph, prepend=0)
    wrong = np.flatnonzero((steps < 0) | (steps > 1))
    if len(wrong):
        line = int(wrong[0])
        before = graph[line - 1] if line else 0
        allowed = f"{max(int(before), 1)} or {before + 1}: graphs in order, none without nodes"
        raise InputError(f"{path}:{line + 1}", "graph", int(graph[line]), allowed)
    if graph[-1] != known.graphs:
        raise InputError(path, "graphs", int(graph[-1]), f"{known.graphs}; fetch the files again")


def _arrays(found: TUDataset) -> Arrays:
    """PyG numbers nodes within their graph; here all nodes are numbered."""
    graphs = [found[number] for number in range(len(found))]
    first = np.concatenate(([0], np.cumsum([graph.num_nodes for graph in graphs])))
    nodes = int(first[-1])
    sources, targets = [], []
    for graph, begin in zip(graphs, first[:-1], strict=True):
        ends = graph.edge_index.numpy()
        if ends.size and (ends.min() < 0 or ends.max() >= graph.num_nodes):
            raise ValueError("an edge leaves its graph")
        sources.append(ends[0] + begin)
        targets.append(ends[1] + begin)
    arrays: Arrays = {
        "labels": np.concatenate([graph.y.numpy() for graph in graphs]).astype(np.int64),
        "edges": ordered_edges(np.concatenate(sources), np.concatenate(targets), nodes),
        "first": first.astype(np.int64),
    }
    if graphs[0].x is not None:
        arrays["stored"] = np.concatenate([graph.x.numpy().argmax(1) for graph in graphs])
        arrays["stored_columns"] = np.array(graphs[0].x.shape[1])
    return arrays


def _check(config: TuGraphs, arrays: Arrays, folder: Path) -> None:
    known, labels = config.set, arrays["labels"]
    checks = [
        ("graph_labels", len(labels), known.graphs),
        ("classes", int(labels.max()) + 1, known.classes),
        ("labels of nodes", int(arrays.pop("stored_columns", np.array(0))), known.labels),
    ]
    for key, value, wanted in checks:
        if value != wanted:
            raise InputError(folder, key, value, f"{wanted}; fetch the files again")
    if not arrays["edges"].size:
        raise InputError(folder, "edges", 0, "edges between its nodes")
