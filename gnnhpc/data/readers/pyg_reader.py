"""Published graphs through PyG's own classes, working beside the data and never in it."""

from __future__ import annotations

import contextlib
import io
import pickle
from pathlib import Path

import numpy as np
import torch
from torch_geometric import datasets
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.transforms import Compose, NormalizeFeatures

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.cache import Arrays
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.published_files import Pyg
from gnnhpc.data.readers.arrays import check_sizes, ordered_edges
from gnnhpc.data.readers.npz_file import NpzFile
from gnnhpc.data.readers.unpickle import read_arrays

_SPARSE = ("indptr", "columns", "values")
_FETCH_AGAIN = "the graph as published; fetch its files again"


def read_pyg(config: PublishedGraph, pyg: Pyg, raw: list[Path], work: Path) -> Arrays:
    """The arrays of a published graph; PyG works in `work`, a new folder, on links to `raw`.

    Keys: `labels`, `edges`; `train`, `val`, `test` where a split is published; `indptr`,
    `columns`, `values` or `dense` where features are real. Raises InputError for damaged files.
    """
    copy = config.published.directory(work)
    copy.mkdir(parents=True)
    for path in raw:
        (copy / path.name).symlink_to(path.resolve())
    _refuse_objects(pyg, raw)
    if config.features == "made" and config.published.feature_files:
        _stand_in_features(config, copy)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            data = _dataset(pyg, work if pyg.argument else copy.parent)[0]
        arrays = _arrays(config, pyg, data)
    except ImportError:
        raise
    except Exception as error:
        # Damaged content can fail anywhere inside PyG, in any way.
        reason = f"damaged files ({type(error).__name__}: {error})"
        raise InputError(raw[0].parent, None, reason, _FETCH_AGAIN) from error
    check_sizes(config, arrays, raw[0].parent)
    return arrays


def _dataset(pyg: Pyg, root: Path) -> InMemoryDataset:
    steps = [NormalizeFeatures()] if pyg.normalized else []
    if not pyg.dense:
        steps.append(_sparse)
    names = (pyg.argument,) if pyg.argument else ()
    return getattr(datasets, pyg.dataset)(str(root), *names, pre_transform=Compose(steps))


def _sparse(data: Data) -> Data:
    """Keep features as CSR rows before PyG writes them out: they are mostly zeros."""
    rows, columns = data.x.nonzero(as_tuple=True)
    data.values = data.x[rows, columns]
    data.columns = columns
    data.indptr = torch.searchsorted(rows, torch.arange(len(data.y) + 1))
    del data.x
    return data


def _refuse_objects(pyg: Pyg, raw: list[Path]) -> None:
    """Some classes unpickle what they find: nothing but arrays may be in the files."""
    for path in raw:
        if path.suffix == ".npz":
            _refuse_object_arrays(path)
        elif pyg.pickled and path.suffix != ".index":
            read_arrays(path, encoding="latin1", graphs=True)


def _refuse_object_arrays(path: Path) -> None:
    try:
        file = NpzFile(path)
    except InputError as error:
        reason = f"damaged files ({path.name}: {error.found})"
        raise InputError(path.parent, None, reason, _FETCH_AGAIN) from None
    for key in file.headers:
        file.header(key, "numbers")


def _stand_in_features(config: PublishedGraph, copy: Path) -> None:
    """Empty feature files as long as their label files, for PyG to find."""
    columns = config.facts().features
    for name in config.published.feature_files:
        start, _, part = name.rpartition(".")
        rows = len(read_arrays(copy / f"{start}.{part.replace('x', 'y')}", encoding="latin1"))
        empty = np.zeros((rows, columns), dtype=np.uint8)
        (copy / name).write_bytes(pickle.dumps(empty))


def _arrays(config: PublishedGraph, pyg: Pyg, data: Data) -> Arrays:
    """PyG's tensors as arrays: edges sorted by (target, source), features by rows."""
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
