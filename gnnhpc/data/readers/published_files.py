"""Reads published graphs: Planetoid and others by PyG's classes, TU's sets, OGB's tables.

PyG works in a folder of its own, on links to the files, and never in the data root.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric import datasets
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.transforms import Compose, NormalizeFeatures

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.data_cache import Arrays
from gnnhpc.data.published_graphs import PublishedGraph, Pyg
from gnnhpc.data.readers.safe_pickle import read_arrays
from gnnhpc.data.splits import Ints, Mask, distinct, mask_of
from gnnhpc.data.tu import TuGraphs

_SPARSE = ("indptr", "columns", "values")
_FETCH_AGAIN = "the files as published; fetch them again"
_OGB_PARTS = {"train": "train", "val": "valid", "test": "test"}


def ordered_edges(source: Ints, target: Ints, nodes: int) -> Ints:
    """int64 [2, E] sorted by (target, source), each edge once, without self-loops."""
    key = distinct((target * nodes + source)[source != target])
    return np.stack([key % nodes, key // nodes])


def read_pyg(config: PublishedGraph, raw: list[Path], work: Path) -> Arrays:
    """The arrays of a published graph, read by PyG in the new folder `work`.

    Keys: `labels`, `edges`; `train`, `val`, `test` where a split is published; `indptr`,
    `columns`, `values` or `dense` where features are real. Raises InputError for damaged files.
    """
    pyg = config.published.reader
    assert isinstance(pyg, Pyg)
    copy = config.published.directory(work)
    _link(raw, copy)
    for path in raw if pyg.pickled else ():
        if path.suffix != ".index":
            read_arrays(path, encoding="latin1", graphs=True)
    if config.features == "made" and config.published.feature_files:
        _write_empty_features(config, copy)
    with _damage_named(raw[0].parent):
        steps = [
            *([NormalizeFeatures()] if pyg.normalized else []),
            *([] if pyg.dense else [_sparse]),
        ]
        names = (pyg.argument,) if pyg.argument else ()
        folder = work if pyg.argument else copy.parent
        dataset: InMemoryDataset = getattr(datasets, pyg.dataset)(
            str(folder), *names, pre_transform=Compose(steps)
        )
        arrays = _pyg_arrays(config, pyg, dataset[0])
    _check_sizes(config, arrays, raw[0].parent)
    return arrays


def _link(raw: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in raw:
        (folder / path.name).symlink_to(path.resolve())


@contextlib.contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """Raise InputError for whatever PyG raises: damaged content can fail anywhere in it."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except ImportError:
        raise
    except Exception as error:
        reason = f"damaged files ({type(error).__name__}: {error})"
        raise InputError(folder, None, reason, _FETCH_AGAIN) from error


def _sparse(data: Data) -> Data:
    """Store features as CSR rows before PyG writes them: they are mostly zeros."""
    rows, columns = data.x.nonzero(as_tuple=True)
    data.values = data.x[rows, columns]
    data.columns = columns
    data.indptr = torch.searchsorted(rows, torch.arange(len(data.y) + 1))
    del data.x
    return data


def _write_empty_features(config: PublishedGraph, copy: Path) -> None:
    """Write empty feature files as long as their label files, which PyG expects."""
    columns = config.facts().features
    for name in config.published.feature_files:
        start, _, part = name.rpartition(".")
        rows = len(read_arrays(copy / f"{start}.{part.replace('x', 'y')}", encoding="latin1"))
        empty = np.zeros((rows, columns), dtype=np.uint8)
        (copy / name).write_bytes(pickle.dumps(empty))


def _pyg_arrays(config: PublishedGraph, pyg: Pyg, data: Data) -> Arrays:
    source, target = data.edge_index.numpy()
    arrays: Arrays = {
        "labels": data.y.numpy().astype(np.int64),
        "edges": ordered_edges(source, target, len(data.y)),
    }
    for split in SPLITS:
        if f"{split}_mask" in data:
            mask = data[f"{split}_mask"].numpy()
            arrays[split] = mask[:, config.split].copy() if mask.ndim == 2 else mask
    if config.features == "real":
        parts = {"dense": "x"} if pyg.dense else {part: part for part in _SPARSE}
        arrays |= {key: data[attribute].numpy() for key, attribute in parts.items()}
    return arrays


def _check_sizes(config: PublishedGraph, arrays: Arrays, folder: Path) -> None:
    """Raises InputError where sizes are not the published ones, which models are built for."""
    facts, labels, edges = config.facts(), arrays["labels"], arrays["edges"]
    classes = f"{labels.min()} to {labels.max()}"
    inside = labels.min() >= 0 and labels.max() < facts.classes
    joined = edges.size > 0 and edges.min() >= 0 and edges.max() < facts.nodes
    checks: list[tuple[str, Any, str, bool]] = [
        ("nodes", len(labels), str(facts.nodes), len(labels) == facts.nodes),
        ("labels", classes, f"0 to {facts.classes - 1}", inside),
        ("edges", edges.shape[1], "edges between its nodes", joined),
    ]
    if "columns" in arrays and len(arrays["columns"]):
        found = arrays["columns"].max() + 1
        checks.append(("features", found, f"{facts.features} columns", found <= facts.features))
    if "dense" in arrays:
        shape, expected = list(arrays["dense"].shape), [facts.nodes, facts.features]
        checks.append(("features", shape, str(expected), shape == expected))
    for key, found, allowed, good in checks:
        if not good:
            raise InputError(folder, key, found, f"{allowed}; fetch the files again")


def read_tu(config: TuGraphs, raw: list[Path], work: Path) -> Arrays:
    """The arrays of a set of graphs, read by PyG in the new folder `work`.

    Keys: `labels` [graphs], `edges` [2, E], `first` [graphs + 1], and `stored` [nodes] where nodes
    have labels. Raises InputError for damaged files and for sizes that are not the published ones.
    """
    known, folder = config.set, raw[0].parent
    _link(raw, config.files().directory(work))
    _check_indicator(config, next(p for p in raw if p.name.endswith("_graph_indicator.txt")))
    with _damage_named(folder):
        dataset = datasets.TUDataset(str(work), known.folder)
        graphs = [dataset[number] for number in range(len(dataset))]
        arrays = _tu_arrays(graphs)
    columns = 0 if graphs[0].x is None else graphs[0].x.shape[1]
    checks = [
        ("graph_labels", len(arrays["labels"]), known.graphs),
        ("classes", int(arrays["labels"].max()) + 1, known.classes),
        ("labels of nodes", columns, known.labels),
    ]
    for key, value, expected in checks:
        if value != expected:
            raise InputError(folder, key, value, f"{expected}; fetch the files again")
    if not arrays["edges"].size:
        raise InputError(folder, "edges", 0, "edges between its nodes")
    return arrays


def _check_indicator(config: TuGraphs, path: Path) -> None:
    """Check that nodes are in the order of their graphs, from 1: PyG takes that for granted."""
    try:
        graph = np.loadtxt(path, dtype=np.int64, ndmin=1)
    except (OSError, ValueError) as error:
        raise InputError(path, None, f"unreadable ({error})", _FETCH_AGAIN) from None
    known = config.set
    if len(graph) != known.nodes:
        raise InputError(path, "nodes", len(graph), f"{known.nodes}; fetch the files again")
    steps = np.diff(graph, prepend=0)
    wrong = np.flatnonzero((steps < 0) | (steps > 1))
    if len(wrong):
        line = int(wrong[0])
        before = int(graph[line - 1]) if line else 0
        allowed = f"{max(before, 1)} or {before + 1}: graphs in order, none without nodes"
        raise InputError(f"{path}:{line + 1}", "graph", int(graph[line]), allowed)
    if graph[-1] != known.graphs:
        raise InputError(path, "graphs", int(graph[-1]), f"{known.graphs}; fetch the files again")


def _tu_arrays(graphs: list[Data]) -> Arrays:
    """PyG numbers nodes within their graph; here nodes are numbered over all graphs."""
    first = np.concatenate(([0], np.cumsum([graph.num_nodes for graph in graphs])))
    sources, targets = [], []
    for graph, begin in zip(graphs, first[:-1], strict=True):
        ends = graph.edge_index.numpy()
        if ends.size and (ends.min() < 0 or ends.max() >= graph.num_nodes):
            raise ValueError("an edge leaves its graph")
        sources.append(ends[0] + begin)
        targets.append(ends[1] + begin)
    edges = ordered_edges(np.concatenate(sources), np.concatenate(targets), int(first[-1]))
    labels = np.concatenate([graph.y.numpy() for graph in graphs]).astype(np.int64)
    arrays: Arrays = {"labels": labels, "edges": edges, "first": first.astype(np.int64)}
    if graphs[0].x is not None:
        arrays["stored"] = np.concatenate([graph.x.numpy().argmax(1) for graph in graphs])
    return arrays


def read_ogb(config: PublishedGraph, raw: list[Path]) -> Arrays:
    """The arrays of a graph of OGB, as of `read_pyg`, with both directions of every edge.

    `raw/` has one gzipped table a file without a header: `edge` (source, target), `node-feat`,
    `node-label`, `num-node-list` and `num-edge-list`; `split/<kind>/` has node numbers. Raises
    InputError for a table that is damaged or of another size than the others say.
    """
    tables = {path.name.removesuffix(".csv.gz"): path for path in raw}
    labels = _numbers(tables["node-label"], 1)[:, 0]
    nodes, (source, target) = len(labels), _numbers(tables["edge"], 2).T
    for listed, count, counted in (
        ("num-node-list", nodes, "node-label"),
        ("num-edge-list", len(source), "edge"),
    ):
        stated = _numbers(tables[listed], 1).ravel().tolist()
        if stated != [count]:
            allowed = f"{stated} as {tables[listed].name} says"
            raise InputError(tables[counted], None, f"{count} lines", allowed)
    ends = np.concatenate([source, target])
    _check_nodes(tables["edge"], ends, nodes)
    edges = ordered_edges(ends, np.concatenate([target, source]), nodes)
    arrays: Arrays = {"labels": labels, "edges": edges}
    arrays |= {key: _ogb_mask(tables[part], nodes) for key, part in _OGB_PARTS.items()}
    if config.features == "real":
        arrays["dense"] = _table(tables["node-feat"], np.float32)
    _check_sizes(config, arrays, tables["edge"].parent)
    return arrays


def _ogb_mask(path: Path, nodes: int) -> Mask:
    chosen = _numbers(path, 1)[:, 0]
    _check_nodes(path, chosen, nodes)
    return mask_of(chosen, nodes)


def _check_nodes(path: Path, numbers: Ints, nodes: int) -> None:
    if len(numbers) == 0 or numbers.min() < 0 or numbers.max() >= nodes:
        found = f"nodes {numbers.min()} to {numbers.max()}" if len(numbers) else "no nodes"
        raise InputError(path, None, found, f"nodes 0 to {nodes - 1}")


def _numbers(path: Path, columns: int) -> Ints:
    table: Ints = _table(path, np.int64)
    if table.shape[1] != columns:
        raise InputError(path, None, f"{table.shape[1]} columns", f"{columns}; {_FETCH_AGAIN}")
    return table


def _table(path: Path, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """All numbers of a file, [lines, columns]."""
    # pandas reads a gigabyte of text in a minute, numpy in an hour.
    import pandas as pd

    try:
        frame = pd.read_csv(path, header=None, dtype=dtype, compression="gzip")
    except Exception as error:
        # A damaged archive can fail anywhere in zlib or pandas.
        reason = f"a damaged file ({type(error).__name__}: {error})"
        raise InputError(path, None, reason, _FETCH_AGAIN) from None
    return np.ascontiguousarray(frame.to_numpy())
