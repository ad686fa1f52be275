"""The arrays of a data set by name, as the run has loaded them and as the independent readers read
them.

Names are the same on both sides, so that digests of the arrays can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.graph_set_batches import GraphSetBatches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.data.data_settings import Data
from gnnhpc.data.images import load_images
from gnnhpc.data.load_graph import load_graph, load_graph_set
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.records.schema import Phase
from gnnhpc.validation.readers.read_graph_sets import read_graph_set
from gnnhpc.validation.readers.read_graphs import Features, read_graph
from gnnhpc.validation.readers.read_images import read_images

Array = npt.NDArray[Any]
Arrays = dict[str, Sequence[Array]]
"""Each array by its name, as pieces one after another."""
_SPLITS: tuple[Phase, ...] = ("train", "test")


@dataclass(frozen=True)
class ReadArrays:
    """What the independent reader reads of a data set."""

    arrays: Arrays
    rounded: frozenset[str] = frozenset()
    """Names of arrays that the run's differ from by rounding."""
    independent: bool = True
    """Whether another reader than the run's has read them."""


def read_arrays(data: Data, root: Path | None) -> ReadArrays:
    """Read a data set independently. Raises InputError and OSError for files it cannot read."""
    kind = data.facts().kind
    if kind == "images":
        arrays: Arrays = {}
        for split in _SPLITS:
            pixels, labels = read_images(data, root, split)
            arrays |= _of_images(split, [pixels], labels)
        return ReadArrays(arrays, independent=bool(data.files(root)))
    if kind == "graphs":
        graphs = read_graph_set(data, root)
        first = _offsets(graphs.graph_of, len(graphs.labels))
        arrays = _of_masks(graphs.masks) | {"labels": [graphs.labels], "first": [first]}
        arrays |= _of_edges(graphs.source, graphs.target) | _of_features(graphs.features)
        return ReadArrays(arrays, independent=graphs.independent)
    graph = read_graph(data, root)
    arrays = _of_masks(graph.masks) | {"labels": [graph.labels]}
    arrays |= _of_edges(graph.source, graph.target) | _of_features(graph.features)
    arrays |= _of_in_edges(graph.source, _offsets(graph.target, graph.nodes))
    if graph.weights is not None:
        arrays["edge weights"] = [graph.weights]
    rounded = frozenset({"feature values"} if graph.rounded else ())
    return ReadArrays(arrays, rounded, graph.independent)


def loaded_arrays(data: Data, root: Path | None, batches: Batches | None = None) -> Arrays:
    """The arrays that the run's loaders give: those that `batches` hold, else loaded now.

    Chunks of a graph and the links of one hold no whole graph, which is loaded once more.
    """
    kind = data.facts().kind
    if kind == "images":
        held = batches.images if isinstance(batches, ImageBatches) else None
        images = held or {split: load_images(data, root, split) for split in _SPLITS}
        arrays: Arrays = {}
        for split, each in images.items():
            arrays |= _of_images(split, each.parts, each.labels)
        return arrays
    if kind == "graphs":
        graphs = batches.graphs if isinstance(batches, GraphSetBatches) else None
        return _of_graph_set(graphs or load_graph_set(data, root))
    graph = None
    if isinstance(batches, SampledBatches) and batches.links is None:
        graph = batches.graph
    return _of_graph(graph or load_graph(data, root))


def _of_graph(graph: Graph) -> Arrays:
    arrays = _of_masks({name: mask.numpy() for name, mask in graph.masks.items()})
    arrays |= {"labels": [graph.labels.numpy()]} | _of_tensor(graph.features)
    arrays |= _of_edges(*graph.edges.numpy())
    if graph.edge_weight is not None:
        arrays["edge weights"] = [graph.edge_weight.numpy()]
    stored = graph.stored_in_edges
    if stored is not None:
        arrays |= _of_in_edges(stored.source.numpy(), stored.indptr.numpy())
    return arrays


def _of_graph_set(graphs: GraphSet) -> Arrays:
    arrays = _of_masks({name: mask.numpy() for name, mask in graphs.masks.items()})
    arrays |= {"labels": [graphs.labels.numpy()], "first": [graphs.first.numpy()]}
    return arrays | _of_edges(*graphs.edges.numpy()) | _of_tensor(graphs.features)


def _of_images(split: str, parts: Sequence[Array], labels: Array) -> Arrays:
    return {f"{split} pixels": parts, f"{split} labels": [labels]}


def _of_masks(masks: Mapping[str, Array]) -> Arrays:
    return {f"{name} mask": [mask] for name, mask in masks.items()}


def _of_edges(source: Array, target: Array) -> Arrays:
    return {"edge sources": [source], "edge targets": [target]}


def _of_in_edges(source: Array, indptr: Array) -> Arrays:
    return {"in-edge sources": [source.astype(np.int32, copy=False)], "in-edge offsets": [indptr]}


def _of_tensor(features: Tensor) -> Arrays:
    if features.layout != torch.sparse_csr:
        return _of_features(features.numpy())
    rows = (features.values(), features.col_indices(), features.crow_indices())
    values, columns, indptr = (each.numpy() for each in rows)
    return _of_rows(values, columns, indptr)


def _of_features(features: Features) -> Arrays:
    if isinstance(features, scipy.sparse.csr_array):
        return _of_rows(features.data, features.indices, features.indptr)
    return {"features": [features]}


def _of_rows(values: Array, columns: Array, indptr: Array) -> Arrays:
    offsets = indptr.astype(np.int64, copy=False)
    places = columns.astype(np.int64, copy=False)
    return {"feature offsets": [offsets], "feature columns": [places], "feature values": [values]}


def _offsets(ascending: Array, count: int) -> Array:
    """The place at which each of the numbers 0 to count begins in an ascending array, int64 [count
    + 1]."""
    return np.searchsorted(ascending, np.arange(count + 1)).astype(np.int64)
