"""How published graphs lie on disk, and what reads them. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.data.files import Download, Files


@dataclass(frozen=True)
class Pyg:
    """Read by a class of torch_geometric.datasets, which looks for `<root>/<folder>/raw`."""

    dataset: str
    """The class."""
    argument: str | None = None
    """The name that class knows the data set by, where it knows several."""
    pickled: bool = False
    """Whether the class unpickles its files: they are searched for anything but arrays first."""
    normalized: bool = False
    """Whether features are divided by their sum, row by row."""
    dense: bool = False
    """Whether features are kept as they are, not as the few that are no zero."""


@dataclass(frozen=True)
class Ogb:
    """OGB's own folder of comma-separated files, read without its package.

    The graph gets both directions of every edge: arxiv's citations have one, and OGB's own
    examples train on both; of products the file holds each edge once.
    """

    split: str
    """The folder under `split/`."""


@dataclass(frozen=True)
class Published:
    """One graph: its files lie under `<root>/<folder>`."""

    reader: Pyg | Ogb
    folder: str
    files: tuple[str, ...]
    source: str
    """Where the files are published, for whoever has to fetch them."""
    downloads: tuple[Download, ...]
    facts: Facts
    splits: int = 0
    """Published splits into training, validation and test; with none one is drawn."""
    feature_files: tuple[str, ...] = ()
    """Those of `files` that are not needed for made-up features."""
    refused: str | None = None
    """Why no model can be trained on it yet."""

    @property
    def dense(self) -> bool:
        """Whether features are kept as they are, not as the few that are no zero."""
        return isinstance(self.reader, Ogb) or self.reader.dense

    def all_files(self) -> Files:
        return Files(self.folder, self.files, self.downloads)

    def directory(self, root: Path) -> Path:
        return root / self.folder

    def needed(self, features: str) -> tuple[str, ...]:
        """The files that are read for features that are `real` or `made`."""
        if features == "real":
            return self.files
        return tuple(name for name in self.files if name not in self.feature_files)


def graph_facts(nodes: int, edges: int, features: int, classes: int, train: int = 0) -> Facts:
    """In the order of PyG's own tables; `train` nodes of a published split, where it is known."""
    return Facts("graph", features, classes, nodes=nodes, edges=edges, train=train)


def planetoid(name: str, facts: Facts) -> Published:
    """Eight files of Planetoid, features apart from the rest."""
    start = f"ind.{name.lower()}"
    features = tuple(f"{start}.{part}" for part in ("x", "tx", "allx"))
    others = tuple(f"{start}.{part}" for part in ("y", "ty", "ally", "graph", "test.index"))
    base = "https://github.com/kimiyoung/planetoid"
    return Published(
        Pyg("Planetoid", name, pickled=True, normalized=True),
        f"{name}/raw",
        features + others,
        f"{base}/tree/master/data",
        _one_by_one(f"{base}/raw/master/data", features + others),
        facts,
        splits=1,
        feature_files=features,
    )


def one_file(
    reader: Pyg, folder: str, file: str, base: str, facts: Facts, splits: int = 0
) -> Published:
    """A single file published at `<base>/<file>`."""
    downloads = _one_by_one(base, (file,))
    return Published(reader, f"{folder}/raw", (file,), base, downloads, facts, splits)


def geom_gcn(reader: Pyg, folder: str, name: str, facts: Facts) -> Published:
    """Two text files and ten splits of Geom-GCN."""
    base = "https://raw.githubusercontent.com/graphdml-uiuc-jlu/geom-gcn/master"
    texts = ("out1_node_feature_label.txt", "out1_graph_edges.txt")
    splits = tuple(f"{name}_split_0.6_0.2_{number}.npz" for number in range(10))
    return Published(
        reader,
        f"{folder}/raw",
        texts + splits,
        base,
        _one_by_one(f"{base}/new_data/{name}", texts) + _one_by_one(f"{base}/splits", splits),
        facts,
        splits=10,
    )


def graphsaint(
    dataset: str, drive_ids: tuple[str, str, str, str], facts: Facts, refused: str | None = None
) -> Published:
    """Four files of GraphSAINT; the ids are those of its Google Drive, in the files' order."""
    files = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
    base = "https://drive.usercontent.google.com/download"
    downloads = tuple(
        Download(f"{base}?id={number}&confirm=t", file)
        for number, file in zip(drive_ids, files, strict=True)
    )
    return Published(
        Pyg(dataset, dense=True),
        f"{dataset}/raw",
        files,
        "https://github.com/GraphSAINT/GraphSAINT",
        downloads,
        facts,
        splits=1,
        refused=refused,
    )


def ogb(name: str, split: str, megabytes: int, facts: Facts) -> Published:
    """A node property prediction set of OGB (Hu et al. 2020, arXiv:2005.00687)."""
    tables = ("edge", "node-label", "num-node-list", "num-edge-list", "node-feat")
    files = tuple(f"raw/{table}.csv.gz" for table in tables)
    splits = tuple(f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test"))
    url = f"http://snap.stanford.edu/ogb/data/nodeproppred/{name}.zip"
    return Published(
        Ogb(split),
        f"ogbn_{name}",
        files + splits,
        url,
        (Download(url, archive="zip", strip=1, megabytes=megabytes),),
        facts,
        splits=1,
        feature_files=("raw/node-feat.csv.gz",),
    )


def _one_by_one(base: str, files: tuple[str, ...]) -> tuple[Download, ...]:
    return tuple(Download(f"{base}/{file}", file) for file in files)
