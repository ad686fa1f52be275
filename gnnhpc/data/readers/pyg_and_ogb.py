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
import torch
from torch_geometric import datasets
from torch_geometric.data import Data
from torch_geometric.transforms import Compose, NormalizeFeatures

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.edges_and_splits import Arrays, Ints, masks_of, ordered_edges
from gnnhpc.data.graph_sets import TuGraphs
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.data.readers.safe_pickle import read_arrays


def read_published(config: PublishedGraph, raw: list[Path], work: Path) -> Arrays:
    """The arrays of a published graph, which PyG reads in the new folder `work`.

    Raises InputError for damaged files and for sizes that are not the published ones, which models
    are built for.
    """
    facts, by_pyg = config.facts(), config.published.dataset is not None
    with _damage_named(raw[0].parent):
        arrays = _read_pyg(config, raw, work) if by_pyg else _read_ogb(raw)
        labels, columns = arrays["labels"], facts.features
        if "dense" in arrays:
            columns = arrays["dense"].shape[1]
        elif "columns" in arrays:
            columns = max(columns, int(arrays["columns"].max(initial=0)) + 1)
        _compare("nodes", len(labels), facts.nodes)
        _compare("features", columns, facts.features)
        _check_range("labels", labels, facts.classes)
        _check_range("ends of edges", arrays["edges"], facts.nodes)
    return arrays


def _compare(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{found} {what}, not {expected}")


def _check_range(what: str, numbers: Ints, count: int) -> None:
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= count:
        raise ValueError(f"{what} from {low} to {high}, not 0 to {count - 1}")


@contextlib.contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """Raise InputError for whatever PyG raises: damaged content can fail anywhere in it."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except (ImportError, InputError):
        raise
    except Exception as error:
        found = f"damaged files ({type(error).__name__}: {error})"
        raise InputError(folder, None, found, "those published; fetch them again") from error


def _link(raw: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in raw:
        (folder / path.name).symlink_to(path.resolve())


def _read_pyg(config: PublishedGraph, raw: list[Path], work: Path) -> Arrays:
    pyg = config.published
    copy = pyg.files.directory(work)
    _link(raw, copy)
    for path in raw if pyg.pickled else ():
        if path.suffix != ".index":
            read_arrays(path, encoding="latin1")
    if config.features == "made":
        _write_empty_features(config, copy)
    steps = [*([NormalizeFeatures()] if pyg.normalized else []), *([] if pyg.dense else [_sparse])]
    names = (pyg.argument,) if pyg.argument else ()
    folder = work if pyg.argument else copy.parent
    data = getattr(datasets, str(pyg.dataset))(str(folder), *names, pre_transform=Compose(steps))[0]
    source, target = data.edge_index.numpy()
    labels = data.y.numpy().astype(np.int64)
    arrays: Arrays = {
        "labels": labels,
        "edges": ordered_edges(source, target, len(labels)),
    }
    for split in SPLITS:
        if f"{split}_mask" in data:
            mask = data[f"{split}_mask"].numpy()
            arrays[split] = mask[:, config.split].copy() if mask.ndim == 2 else mask
    if config.features == "real":
        parts = {"dense": "x"} if pyg.dense else {key: key for key in _SPARSE}
        arrays |= {key: data[attribute].numpy() for key, attribute in parts.items()}
    return arrays


_SPARSE = ("indptr", "columns", "values")


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


def read_tu(config: TuGraphs, raw: list[Path], work: Path) -> Arrays:
    """The arrays of a set of graphs, read by PyG in the new folder `work`.

    Keys: `labels` [graphs], `edges` [2, E], `first` [graphs + 1], and `stored` [nodes] where nodes
    have labels. Raises InputError for damaged files and for sizes that are not the published ones.
    """
    known = config.set
    _link(raw, config.files().directory(work))
    with _damage_named(raw[0].parent):
        dataset = datasets.TUDataset(str(work), known.folder)
        graphs = [dataset[number] for number in range(len(dataset))]
        arrays = _tu_arrays(graphs)
        _compare("nodes", int(arrays["first"][-1]), known.nodes)
        _compare("graphs", len(arrays["labels"]), known.graphs)
        _compare("classes", int(arrays["labels"].max()) + 1, known.classes)
        _compare("labels of nodes", graphs[0].num_node_features, known.labels)
    return arrays


def _tu_arrays(graphs: list[Data]) -> Arrays:
    """PyG numbers nodes within their graph; here nodes are numbered over all graphs."""
    first = np.concatenate(([0], np.cumsum([graph.num_nodes for graph in graphs])))
    ends = [graph.edge_index.numpy() for graph in graphs]
    for graph, edges in zip(graphs, ends, strict=True):
        if edges.size:
            _check_range("ends of a graph's edges", edges, graph.num_nodes)
    source, target = np.concatenate([e + begin for e, begin in zip(ends, first, strict=False)], 1)
    labels = np.concatenate([graph.y.numpy() for graph in graphs]).astype(np.int64)
    edges = ordered_edges(source, target, int(first[-1]))
    arrays: Arrays = {"labels": labels, "edges": edges, "first": first.astype(np.int64)}
    if graphs[0].x is not None:
        arrays["stored"] = np.concatenate([graph.x.numpy().argmax(1) for graph in graphs])
    return arrays


def _read_ogb(raw: list[Path]) -> Arrays:
    """The arrays of a graph of OGB, with both directions of every edge.

    `raw/` has one gzipped table a file without a header: `edge` (source, target), `node-feat`,
    `node-label`; `split/<kind>/` has node numbers.
    """
    tables = {path.name.removesuffix(".csv.gz"): path for path in raw}
    labels = _table(tables["node-label"], np.int64).ravel()
    source, target = _table(tables["edge"], np.int64).T
    parts = [_table(tables[part], np.int64).ravel() for part in ("train", "valid", "test")]
    edges: Ints = ordered_edges(source, target, len(labels), both=True)
    arrays: Arrays = {"labels": labels, "edges": edges, **masks_of(parts, len(labels))}
    if "node-feat" in tables:
        arrays["dense"] = _table(tables["node-feat"], np.float32)
    return arrays


def _table(path: Path, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """All numbers of a file, [lines, columns]."""
    # pandas reads a gigabyte of text in a minute, numpy in an hour.
    import pandas as pd

    frame = pd.read_csv(path, header=None, dtype=dtype, compression="gzip")
    return np.ascontiguousarray(frame.to_numpy())
