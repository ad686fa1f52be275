"""Small data files in the layouts that are published, for the tests of their readers."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import pickle
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.data.data_files import Download
from gnnhpc.data.published_graphs import PUBLISHED

RECORD = 3073


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("was-here",)


EVIL = pickle.dumps(_Evil())
"""Whoever unpickles it makes a folder `was-here`."""


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


def set_facts(monkeypatch: pytest.MonkeyPatch, name: str, facts: Facts) -> None:
    """Let a published graph be of other sizes, so that small files are whole."""
    monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(PUBLISHED[name], facts=facts))


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


def cifar_archive(site: Path, address: str) -> Download:
    """A small archive of CIFAR-10's six binary files, in a folder that `address` serves."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number, name in enumerate(["test_batch", *(f"data_batch_{n}" for n in range(1, 6))]):
            content = cifar_records(4, number).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (site / "cifar.tar.gz").write_bytes(packed.getvalue())
    digest = hashlib.md5(packed.getvalue(), usedforsecurity=False).hexdigest()
    return Download(f"{address}/cifar.tar.gz", archive="tar.gz", md5=digest)


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
    contents = {"graph": graph}
    for part, rows in {"": slice(train), "all": slice(seen), "t": test}.items():
        contents |= {f"{part}x": scipy.sparse.csr_matrix(dense[rows]), f"{part}y": labels[rows]}
    for part, content in contents.items():
        (raw / f"ind.{folder.lower()}.{part}").write_bytes(pickle.dumps(content, protocol=2))
    (raw / f"ind.{folder.lower()}.test.index").write_text("".join(f"{n}\n" for n in test))
    return raw


def _sparse(prefix: str, *shape: int, density: float = 0.05) -> dict[str, Any]:
    """The arrays of a random CSR matrix, with their names after a prefix."""
    rng = np.random.default_rng(6)
    matrix = scipy.sparse.random(*shape, density, "csr", np.float32, rng)
    return {f"{prefix}{p}": getattr(matrix, p) for p in ("data", "indices", "indptr", "shape")}


def _features(nodes: int, columns: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(7).normal(size=(nodes, columns)).astype(np.float32)


def write_npz(raw: Path, name: str, *, nodes: int, columns: int, classes: int) -> Path:
    """A graph in the one file of Shchur et al."""
    raw.mkdir(parents=True)
    arrays = _sparse("adj_", nodes, nodes) | _sparse("attr_", nodes, columns, density=0.2)
    path = raw / name
    np.savez(path, labels=np.arange(nodes) % classes, **arrays)
    return path


def write_reddit(raw: Path, *, nodes: int, columns: int, classes: int) -> None:
    """A graph in the two files of GraphSAGE's Reddit: a third of the nodes each split."""
    raw.mkdir(parents=True)
    np.savez(
        raw / "reddit_data.npz",
        feature=_features(nodes, columns),
        label=np.arange(nodes) % classes,
        node_types=np.arange(nodes) % 3 + 1,
    )
    edges = scipy.sparse.random(nodes, nodes, 0.05, "coo", np.float32, 0)
    scipy.sparse.save_npz(raw / "reddit_graph.npz", edges)


def write_graphsaint(raw: Path, *, nodes: int, columns: int, classes: int) -> None:
    """A graph in the four files of GraphSAINT: a third of the nodes each split."""
    raw.mkdir(parents=True)
    np.savez(raw / "adj_full.npz", **_sparse("", nodes, nodes))
    np.save(raw / "feats.npy", _features(nodes, columns).astype(np.float64))
    (raw / "class_map.json").write_text(json.dumps({n: n % classes for n in range(nodes)}))
    role = {part: list(range(start, nodes, 3)) for start, part in enumerate(("tr", "va", "te"))}
    (raw / "role.json").write_text(json.dumps(role))


def write_heterophilous(path: Path, *, nodes: int, columns: int, classes: int) -> None:
    """A graph in the one file of Platonov et al., with ten splits that are shifted by one node."""
    path.parent.mkdir(parents=True)
    place = (np.arange(nodes) + np.arange(10)[:, None]) % nodes
    np.savez(
        path,
        node_features=_features(nodes, columns),
        node_labels=np.arange(nodes) % classes,
        edges=np.random.default_rng(8).integers(0, nodes, (3 * nodes, 2)),
        train_masks=place < nodes // 2,
        val_masks=(place >= nodes // 2) & (place < 3 * nodes // 4),
        test_masks=place >= 3 * nodes // 4,
    )


def write_geom_gcn(raw: Path, name: str, *, nodes: int, columns: int, binary: bool) -> None:
    """A graph in Geom-GCN's text files; `binary` lists the columns that are 1, as of actors."""
    rng = np.random.default_rng(9)
    raw.mkdir(parents=True)
    rows = ["node_id\tfeature\tlabel"]
    for node in range(nodes):
        values = [node % columns, columns - 1] if binary else rng.integers(0, 2, columns).tolist()
        rows.append(f"{node}\t{','.join(map(str, values))}\t{node % 5}")
    (raw / "out1_node_feature_label.txt").write_text("\n".join(rows) + "\n")
    ends = [f"{a}\t{b}" for a, b in rng.integers(0, nodes, (3 * nodes, 2)).tolist()]
    (raw / "out1_graph_edges.txt").write_text("\n".join(["node_id\tnode_id", *ends]) + "\n")
    for number in range(10):
        place = (np.arange(nodes) + number) % nodes
        masks = {"train_mask": place < 20, "val_mask": place == 20, "test_mask": place > 20}
        np.savez(raw / f"{name}_split_0.6_0.2_{number}.npz", **masks)


def write_ogb(folder: Path, split: str, *, nodes: int, columns: int, classes: int) -> None:
    """A graph in OGB's folder of gzipped tables: a directed ring with one edge listed twice."""
    tables: dict[str, Any] = {
        "raw/edge": [*((node, (node + 1) % nodes) for node in range(nodes)), (0, 1)],
        "raw/node-feat": _features(nodes, columns).round(3).tolist(),
        "raw/node-label": [[node % classes] for node in range(nodes)],
    }
    for start, part in enumerate(("train", "valid", "test")):
        tables[f"split/{split}/{part}"] = [[node] for node in range(start, nodes, 3)]
    for name, rows in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()))


def custom_arrays(nodes: int = 60, columns: int = 12, classes: int = 3) -> dict[str, Any]:
    """The arrays of a custom graph, dense, with masks: directed, one duplicate, one loop."""
    rng = np.random.default_rng(11)
    source, target = rng.integers(0, nodes, (2, 4 * nodes))
    place = np.arange(nodes)
    return {
        "edge_index": np.stack([np.r_[source, source[0], 5], np.r_[target, target[0], 5]]),
        "x": rng.normal(size=(nodes, columns)) * (rng.random((nodes, columns)) < 0.4),
        "y": place % classes,
        "train_mask": place < 20,
        "val_mask": (place >= 20) & (place < 35),
        "test_mask": place >= 35,
    }
