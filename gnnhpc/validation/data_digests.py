"""Compares the arrays that a run has loaded with digests from an independent reader.

A digest is made once a data set and machine and kept in the cache: a run reads its arrays only. The
key of a digest names the settings, the files with their sizes and times, and the code that makes up
synthetic data.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gnnhpc.batches.batch import Batches
from gnnhpc.core.errors import InputError
from gnnhpc.core.versioned_json import read_object, write_atomically
from gnnhpc.data import splits
from gnnhpc.data.custom_graph import CustomGraph
from gnnhpc.data.data_files import cache_root
from gnnhpc.data.data_settings import Data
from gnnhpc.data.synthetic import citation, images, reddit_shaped, threads
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from gnnhpc.validation.readers.named_arrays import Array, Arrays, loaded_arrays, read_arrays
from gnnhpc.validation.verdicts import few, verdict_of, why_failed

log = logging.getLogger(__name__)

DIGEST_VERSION = 1
NAME = "data"
_INDEPENDENT = "independent"
_PIECE = 1 << 24
"""Bytes that are hashed at a time, by as many threads as there are processors."""
_SHARED = 1 << 28
"""Bytes of arrays from which on one rank of a host compares them for all: they are mapped from the
files of one cache."""
_PROJECTED = 1e-6
"""Relative to the norm, by how much projections of rounded numbers may differ: single precision
changes each number by 1e-7, and a wrong one among a million changes a projection by 1e-3."""
Digests = dict[str, Any]
"""Array -> its SHA-256, or projection and norm of a rounded one."""


def check_data(experiment: Experiment, batches: Batches, root: Path | None, mesh: Mesh) -> Check:
    """Compare the data of a run with their digests; a collective, with one check for all ranks."""
    expected: Digests | str = ""
    if mesh.rank == 0:
        expected = _digests_or_cause(experiment.data, root)
    expected = mesh.gather_objects(expected)[0]
    hosts = mesh.gather_objects(socket.gethostname())
    faults, failed = [], ""
    if not isinstance(expected, str):
        try:
            arrays = loaded_arrays(experiment.data, root, batches)
            size = sum(part.nbytes for parts in arrays.values() for part in parts)
            if size < _SHARED or mesh.rank == hosts.index(hosts[mesh.rank]):
                faults = differences(arrays, expected)
        # The other ranks wait for what this one has found.
        except Exception as error:
            failed = why_failed(error)
    everyone = mesh.gather_objects(faults)
    failures = [each for each in mesh.gather_objects(failed) if each]
    if isinstance(expected, str) or failures:
        why = expected if isinstance(expected, str) else failures[0]
        return Check(NAME, "inconclusive", why)
    known = [f"rank {rank}: {each}" for rank, found in enumerate(everyone) for each in found]
    return verdict_of(NAME, known, _agreement(expected))


def verify_data(data: Data, root: Path | None) -> Check:
    """Compare the data that the loaders give now with their digests, which are made if need be."""
    expected = _digests_or_cause(data, root)
    if isinstance(expected, str):
        return Check(NAME, "inconclusive", expected)
    return verdict_of(NAME, differences(loaded_arrays(data, root), expected), _agreement(expected))


def _agreement(expected: Digests) -> str:
    if expected[_INDEPENDENT]:
        return "the loaded arrays are those of an independent reader"
    return "the loaded arrays are those of a second call of their only reader"


def _digests_or_cause(data: Data, root: Path | None) -> Digests | str:
    """The digests of a data set, or why the independent reader cannot read it."""
    try:
        return data_digests(data, root)
    except Exception as error:
        return f"the independent reader: {why_failed(error)}"


def data_digests(data: Data, root: Path | None) -> Digests:
    """The digests of a data set from the cache, or made by the independent reader and kept there.

    Raises InputError and OSError for files that cannot be read.
    """
    path = cache_root() / "digests" / f"{data.label}-{_key(data, root)}.json"
    try:
        return read_object(path, "digests of a data set")
    except FileNotFoundError:
        pass
    except InputError as error:
        log.warning("%s is damaged (%s) and is made again", path, error)
    read = read_arrays(data, root)
    digests = digests_of(read.arrays, read.rounded) | {_INDEPENDENT: read.independent}
    try:
        write_atomically(path, json.dumps(digests, indent=1) + "\n")
    except OSError as error:
        log.warning("%s cannot be kept (%s)", path, error)
    return digests


def _key(data: Data, root: Path | None) -> str:
    stats = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in _files(data, root)]
    sources = [] if stats else [hashlib.sha256(text).hexdigest() for text in _generator_sources()]
    parts = [DIGEST_VERSION, data.model_dump(mode="json"), stats, sources]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _files(data: Data, root: Path | None) -> list[Path]:
    """The files of a data set that are there; empty for synthetic data."""
    if isinstance(data, CustomGraph):
        return [Path(data.path)]
    files = data.files(root)
    if files is None or root is None:
        return []
    return [path for name in files.names if (path := files.directory(root) / name).is_file()]


def _generator_sources() -> Iterator[bytes]:
    for module in (splits, citation, images, reddit_shaped, threads):
        yield inspect.getsource(module).encode()


def digests_of(arrays: Arrays, rounded: frozenset[str] = frozenset()) -> Digests:
    """A digest of each array; those that are `rounded` get a projection and a norm instead."""
    return {
        name: _projection(parts) if name in rounded else _sha256(parts)
        for name, parts in arrays.items()
    }


def differences(arrays: Arrays, expected: Mapping[str, Any]) -> list[str]:
    """Which of the arrays are not those of the digests, as faults."""
    projected = frozenset(name for name, value in expected.items() if isinstance(value, list))
    unknown = sorted(arrays.keys() - expected.keys())
    if unknown:
        return [f"{few(unknown)} loaded, which the independent reader does not have"]
    return [
        f"{name} differ from the independent reader's"
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


def _projection(parts: Sequence[Array]) -> list[float]:
    """The sum of numbers with random signs, and their norm, in float64."""
    values = np.concatenate([part.ravel() for part in parts]).astype(np.float64)
    signs = np.random.default_rng(len(values)).integers(0, 2, len(values)) * 2 - 1
    return [float(np.sum(values * signs)), float(np.linalg.norm(values))]


def _sha256(parts: Sequence[Array]) -> str:
    """SHA-256 of the type and of the digests of pieces of the bytes, little-endian."""
    dtype = parts[0].dtype.newbyteorder("<")
    flat = [np.ascontiguousarray(part, dtype).reshape(-1).view(np.uint8) for part in parts]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        pieces = list(pool.map(_digest, _pieces(flat)))
    return hashlib.sha256(b"".join([str(dtype).encode(), *pieces])).hexdigest()


def _digest(pieces: Sequence[Array]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.data)
    return digest.digest()


def _pieces(flat: Sequence[Array]) -> Iterator[list[Array]]:
    """The same pieces of all bytes, whatever parts they come in."""
    ends = np.cumsum([0, *(len(part) for part in flat)]).tolist()
    for start in range(0, ends[-1], _PIECE):
        yield [
            part[max(0, start - first) : max(0, start + _PIECE - first)]
            for part, (first, _) in zip(flat, itertools.pairwise(ends), strict=True)
        ]
