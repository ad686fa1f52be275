"""Small data files in the layouts that are published, for the tests of their readers."""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse

RECORD = 3073


def real_root() -> Path:
    """The folder of real data sets; skips the test where there is none."""
    named = os.environ.get("GNNHPC_DATA")
    root = Path(named) if named else Path(__file__).parents[3] / "shared" / "data"
    if not root.is_dir():
        pytest.skip("no real data: set GNNHPC_DATA to a folder that has them")
    return root


def real_file(*parts: str) -> Path:
    """A file of a real data set; skips the test where it is absent."""
    path = real_root().joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {'/'.join(parts)} under GNNHPC_DATA")
    return path


def cifar_records(count: int, seed: int) -> npt.NDArray[np.uint8]:
    """uint8 [count, 3073]: a label, then the red, green and blue planes."""
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (count, RECORD), dtype=np.uint8)
    records[:, 0] = rng.integers(0, 10, count)
    return records


def write_binary(root: Path, name: str, records: npt.NDArray[np.uint8]) -> Path:
    path = root / "cifar-10-batches-bin" / f"{name}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(records.tobytes())
    return path


def write_python(root: Path, name: str, records: npt.NDArray[np.uint8], protocol: int = 2) -> Path:
    path = root / "cifar-10-batches-py" / name
    path.parent.mkdir(exist_ok=True)
    content = {
        b"batch_label": b"made up",
        b"labels": records[:, 0].tolist(),
        b"data": records[:, 1:].copy(),
        b"filenames": [b"none.png"] * len(records),
    }
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def write_planetoid(
    root: Path, folder: str, *, nodes: int = 700, columns: int = 40, classes: int = 3
) -> Path:
    """A graph in Planetoid's eight files: 100 test nodes, 20 a class to train. Returns raw/."""
    rng = np.random.default_rng(5)
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    dense = (rng.random((nodes, columns)) < 0.2).astype(np.float32)
    labels = np.eye(classes, dtype=np.int32)[np.arange(nodes) % classes]
    train, seen = 20 * classes, nodes - 100
    graph: defaultdict[int, list[int]] = defaultdict(list)
    for source, target in rng.integers(0, nodes, (3 * nodes, 2)).tolist():
        graph[source].append(target)
        graph[target].append(source)
    test = seen + rng.permutation(100)
    contents = {
        "x": scipy.sparse.csr_matrix(dense[:train]),
        "allx": scipy.sparse.csr_matrix(dense[:seen]),
        "tx": scipy.sparse.csr_matrix(dense[test]),
        "y": labels[:train],
        "ally": labels[:seen],
        "ty": labels[test],
        "graph": graph,
    }
    for part, content in contents.items():
        (raw / f"ind.{folder.lower()}.{part}").write_bytes(pickle.dumps(content, protocol=2))
    (raw / f"ind.{folder.lower()}.test.index").write_text("".join(f"{n}\n" for n in test))
    return raw


def write_npz(raw: Path, name: str, *, nodes: int, columns: int, classes: int) -> Path:
    """A graph in the one file of Shchur et al."""
    rng = np.random.default_rng(6)
    raw.mkdir(parents=True)
    adjacency = scipy.sparse.random(nodes, nodes, 0.05, "csr", np.float32, rng)
    features = scipy.sparse.random(nodes, columns, 0.2, "csr", np.float32, rng)
    arrays = {
        f"{kind}_{part}": getattr(matrix, part)
        for kind, matrix in (("adj", adjacency), ("attr", features))
        for part in ("data", "indices", "indptr", "shape")
    }
    path = raw / name
    np.savez(path, labels=np.arange(nodes) % classes, **arrays)
    return path
