"""Compares the arrays that a run has loaded with digests from an independent reader.

A digest is made once a data set and machine and kept in the cache: a run reads its arrays only. The
key of a digest names the settings, the files with their sizes and times, and the code that makes up
synthetic data.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import logging
import math
import os
import socket
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.graph_set_batches import GraphSetBatches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.core.errors import InputError
from gnnhpc.core.versioned_json import read_object, write_atomically
from gnnhpc.data import edges_and_splits
from gnnhpc.data.cifar10_images import load_images
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.data.data_files import cache_root
from gnnhpc.data.data_settings import Data
from gnnhpc.data.load_graph import load_graph, load_graph_set
from gnnhpc.data.synthetic import citation, images, reddit_shaped, threads
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.records.schema import Check
from gnnhpc.validation.independent_readers import (
    Array,
    Arrays,
    graph_arrays_by_name,
    in_edges_by_name,
    read_arrays,
)
from gnnhpc.validation.verdicts import few, on_all_ranks, verdict_of, why_failed

log = logging.getLogger(__name__)

DIGEST_VERSION = 2
NAME = "data"
_GENERATORS = (edges_and_splits, citation, images, reddit_shaped, threads)
_INDEPENDENT = "independent"
_PROJECTED = 1e-6
"""Relative to the norm, by how much projections of rounded numbers may differ: single precision
changes each number by 1e-7, and a wrong one among a million changes a projection by 1e-3."""
Digests = dict[str, Any]
"""Array -> its SHA-256, or projection and norm of a rounded one."""


def check_data(
    experiment: Experiment, batches: Batches, root: Path | None, mesh: Mesh
) -> list[Check]:
    """Compare the data of a run with their digests; a collective, with one check for all ranks."""
    data = experiment.data
    (expected, *_) = on_all_ranks(
        mesh, lambda: data_digests(data, root) if mesh.rank == 0 else dict[str, Any]()
    )
    hosts = mesh.gather_objects(socket.gethostname())

    def compare() -> list[str]:
        # Ranks of a host read, or map, the same files.
        if mesh.rank != hosts.index(hosts[mesh.rank]):
            return []
        return differences(loaded_arrays(data, root, batches), expected)

    everyone = on_all_ranks(mesh, compare)
    known = [f"rank {rank}: {each}" for rank, found in enumerate(everyone) for each in found]
    return [verdict_of(NAME, known, _agreement(expected))]


def verify_data(data: Data, root: Path | None) -> Check:
    """Compare the data that the loaders give now with their digests, which are made if need be.

    Raises InputError for files that the loaders refuse.
    """
    loaded = loaded_arrays(data, root)
    try:
        expected = data_digests(data, root)
    except Exception as error:
        return Check(NAME, "inconclusive", f"the independent reader: {why_failed(error)}")
    return verdict_of(NAME, differences(loaded, expected), _agreement(expected))


def _agreement(expected: Digests) -> str:
    if expected[_INDEPENDENT]:
        return "the loaded arrays are those of an independent reader"
    return "the loaded arrays are those of a second call of their only reader"


def data_digests(data: Data, root: Path | None) -> Digests:
    """The digests of a data set from the cache, or made by the independent reader and kept there.

    Raises InputError and OSError for files that cannot be read.
    """
    path = cache_root() / "digests" / f"{data.label}-{_key(data, root)}.json"
    # There may be none, or a damaged one.
    with contextlib.suppress(FileNotFoundError, InputError):
        return read_object(path, "digests of a data set")
    arrays, independent = read_arrays(data, root)
    rounded = {name for name, array in arrays.items() if array.dtype == np.float64}
    digests = digests_of(arrays, rounded) | {_INDEPENDENT: independent}
    try:
        write_atomically(path, json.dumps(digests, indent=1) + "\n")
    except OSError as error:
        log.warning("%s cannot be kept (%s)", path, error)
    return digests


def _key(data: Data, root: Path | None) -> str:
    stats = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in _files(data, root)]
    made_by = [] if stats else list(map(inspect.getsource, _GENERATORS))
    parts = [DIGEST_VERSION, data.model_dump(mode="json"), stats, made_by]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _files(data: Data, root: Path | None) -> list[Path]:
    """The files of a data set that are there; empty for synthetic data."""
    if isinstance(data, CustomGraph):
        return [Path(data.path)]
    files = data.files()
    if files is None or root is None:
        return []
    return [path for name in files.names if (path := files.directory(root) / name).is_file()]


def digests_of(arrays: Arrays, rounded: Collection[str] = ()) -> Digests:
    """A digest of each array; those that are `rounded` get a projection and a norm instead."""
    # Hashing gives up the interpreter's lock, so that threads hash several arrays at once.
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        found = pool.map(
            lambda name: _projection(arrays[name]) if name in rounded else _sha256(arrays[name]),
            arrays,
        )
        return dict(zip(arrays, found, strict=True))


def differences(arrays: Arrays, expected: Mapping[str, Any]) -> list[str]:
    """Which of the arrays are not those of the digests, as faults."""
    projected = {name for name, value in expected.items() if isinstance(value, list)}
    unknown = sorted(arrays.keys() - expected.keys())
    if unknown:
        return [f"{few(unknown)} loaded, which the second reading does not have"]
    return [
        f"{name} differ from those of the second reading"
        for name, value in digests_of(arrays, projected).items()
        if not _agree(value, expected[name])
    ]


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    (projection, norm), (expected, size) = one, other
    # A number that is not finite agrees with none.
    return abs(projection - expected) <= _PROJECTED * size and math.isclose(
        norm, size, rel_tol=_PROJECTED
    )


def _projection(array: Array) -> list[float]:
    """The sum of numbers with random signs, and their norm, in float64."""
    values = array.ravel().astype(np.float64)
    signs = np.random.default_rng(len(values)).integers(0, 2, len(values)) * 2 - 1
    return [float(np.sum(values * signs)), float(np.linalg.norm(values))]


def _sha256(array: Array) -> str:
    """SHA-256 of the type and the numbers, little-endian."""
    dtype = array.dtype.newbyteorder("<")
    digest = hashlib.sha256(str(dtype).encode())
    digest.update(np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def loaded_arrays(data: Data, root: Path | None, batches: Batches | None = None) -> Arrays:
    """The arrays that the run's loaders give: those that `batches` hold, else loaded now.

    Chunks of a graph and the links of one hold no whole graph, which is loaded once more.
    """
    kind = data.facts().kind
    if kind == "images":
        held = batches.images if isinstance(batches, ImageBatches) else None
        images = held or {split: load_images(data, root, split) for split in ("train", "test")}
        arrays: Arrays = {}
        for split, each in images.items():
            pixels = np.concatenate(each.parts)
            arrays |= {f"{split} pixels": pixels, f"{split} labels": each.labels}
        return arrays
    whole: Graph | GraphSet | None = None
    if isinstance(batches, GraphSetBatches):
        whole = batches.graphs
    elif isinstance(batches, SampledBatches) and batches.links is None:
        whole = batches.graph
    if whole is None:
        whole = load_graph_set(data, root) if kind == "graphs" else load_graph(data, root)
    x, masks = whole.features, {name: mask.numpy() for name, mask in whole.masks.items()}
    is_sparse = x.layout == torch.sparse_csr
    features = [x.values(), x.col_indices(), x.crow_indices()] if is_sparse else [x]
    arrays = graph_arrays_by_name(
        masks, whole.labels.numpy(), whole.edges.numpy(), *(each.numpy() for each in features)
    )
    if isinstance(whole, GraphSet):
        return arrays | {"first": whole.first.numpy()}
    if whole.edge_weight is not None:
        arrays["edge weights"] = whole.edge_weight.numpy()
    if whole.stored_in_edges is not None:
        stored = whole.stored_in_edges
        arrays |= in_edges_by_name(stored.source.numpy(), stored.indptr.numpy())
    return arrays
