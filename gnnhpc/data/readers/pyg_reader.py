"""Published graphs through PyG's own classes, working beside the data and never in it."""

from __future__ import annotations

import contextlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.datasets import Amazon, Coauthor, Planetoid, Reddit
from torch_geometric.transforms import Compose, NormalizeFeatures

from gnnhpc.core.errors import InputError
from gnnhpc.data.cache import Arrays
from gnnhpc.data.generators import distinct
from gnnhpc.data.published import FEATURE_PARTS, PublishedGraph
from gnnhpc.data.readers.unpickle import read_arrays

_SPARSE = ("indptr", "columns", "values")
_FETCH_AGAIN = "the graph as published; fetch its files again"


def read_published(config: PublishedGraph, raw: list[Path], work: Path) -> Arrays:
    """The arrays of a published graph; PyG works in `work`, a new folder, on links to `raw`.

    Keys: `labels`, `edges`; `train`, `val`, `test` where a split is published; `indptr`,
    `columns`, `values` or `dense` where features are real. Raises InputError for damaged files.
    """
    copy = config.published.directory(work)
    copy.mkdir(parents=True)
    for path in raw:
        (copy / path.name).symlink_to(path.resolve())
    if config.published.pyg == "Planetoid":
        # PyG unpickles these files as they are: nothing but arrays may be in them.
        _check_pickles(raw)
        if config.features == "made":
            _stand_in_features(config, copy)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            data = _dataset(config, work)[0]
        arrays = _arrays(config, data)
    except ImportError:
        raise
    except Exception as error:
        # Damaged content can fail anywhere inside PyG, in any way.
        reason = f"damaged files ({type(error).__name__}: {error})"
        raise InputError(raw[0].parent, None, reason, _FETCH_AGAIN) from error
    _check(config, arrays, raw[0].parent)
    return arrays


def _dataset(config: PublishedGraph, work: Path) -> InMemoryDataset:
    folder = config.published.folder
    if config.published.pyg == "Planetoid":
        return Planetoid(str(work), folder, pre_transform=Compose([NormalizeFeatures(), _sparse]))
    if config.published.pyg == "Amazon":
        return Amazon(str(work), folder, pre_transform=_sparse)
    if config.published.pyg == "Coauthor":
        return Coauthor(str(work), folder, pre_transform=_sparse)
    return Reddit(str(work / folder))


def _sparse(data: Data) -> Data:
    """Keep features as CSR rows before PyG writes them out: they are mostly zeros."""
    rows, columns = data.x.nonzero(as_tuple=True)
    data.values = data.x[rows, columns]
    data.columns = columns
    data.indptr = torch.searchsorted(rows, torch.arange(len(data.y) + 1))
    del data.x
    return data


def _check_pickles(raw: list[Path]) -> None:
    for path in raw:
        if not path.name.endswith(".index"):
            read_arrays(path, encoding="latin1", graphs=True)


def _stand_in_features(config: PublishedGraph, copy: Path) -> None:
    """Empty feature files as long as their label files, for PyG to find."""
    columns = config.facts().features
    for part in FEATURE_PARTS:
        labels = copy / f"ind.{config.name}.{part.replace('x', 'y')}"
        rows = len(read_arrays(labels, encoding="latin1"))
        empty = np.zeros((rows, columns), dtype=np.uint8)
        (copy / f"ind.{config.name}.{part}").write_bytes(pickle.dumps(empty))


def _arrays(config: PublishedGraph, data: Data) -> Arrays:
    """PyG's tensors as arrays: edges sorted by (target, source), features by rows."""
    source, target = data.edge_index.numpy()
    nodes = len(data.y)
    key = distinct(target * nodes + source)
    key = key[key // nodes != key % nodes]
    arrays: Arrays = {
        "labels": data.y.numpy().astype(np.int64),
        "edges": np.stack([key % nodes, key // nodes]),
    }
    for split in ("train", "val", "test"):
        if f"{split}_mask" in data:
            arrays[split] = data[f"{split}_mask"].numpy()
    if config.features == "real":
        parts = {"dense": "x"} if config.published.dense else {p: p for p in _SPARSE}
        arrays |= {key: data[attribute].numpy() for key, attribute in parts.items()}
    return arrays


def _check(config: PublishedGraph, arrays: Arrays, folder: Path) -> None:
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
        ("edges", edges.shape[1], "edges between its nodes", edges.max() < facts.nodes),
    ]
    if "columns" in arrays:
        found = arrays["columns"].max() + 1
        checks.append(("features", found, f"{facts.features} columns", found <= facts.features))
    for key, found, allowed, good in checks:
        if not good:
            raise InputError(folder, key, found, f"{allowed}; fetch the files again")
