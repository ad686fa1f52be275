"""Published graphs: a table with one row for each, its sizes, its files and its reader.

Sizes are those of PyG's documentation and, for the last two, of OGB's; files are checked against
them when they are read. Planetoid: Yang, Cohen and Salakhutdinov 2016 (arXiv:1603.08861).
CitationFull: Bojchevski and Guennemann 2018 (arXiv:1707.03815). Amazon and Coauthor: Shchur et
al. 2018 (arXiv:1811.05868). Reddit: Hamilton, Ying and Leskovec 2017 (arXiv:1706.02216). Flickr,
Yelp: Zeng et al. 2020 (arXiv:1907.04931). OGB: Hu et al. 2020 (arXiv:2005.00687). The heterophilous
graphs: Platonov et al. 2023 (arXiv:2302.11640); their documented edges are counted in both
directions here. Does not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import model_validator

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.settings import Whole
from gnnhpc.data.data_files import Download, Files
from gnnhpc.data.data_settings import SHCHUR_EACH, Data, Storage


@dataclass(frozen=True)
class Pyg:
    """A graph that a class of torch_geometric.datasets reads from `<root>/<folder>/raw`."""

    dataset: str
    """The name of the class."""
    argument: str | None = None
    """The class's name for the data set, where it has several."""
    pickled: bool = False
    """Whether the class unpickles its files: they may hold arrays alone."""
    normalized: bool = False
    """Whether features are divided by their sum, row by row."""
    dense: bool = False
    """Whether features are stored dense, not as sparse rows."""


@dataclass(frozen=True)
class Published:
    """One row of the table."""

    reader: Pyg | None
    """PyG's class; None for OGB's tables, which are read without its package.

    Graphs of OGB get both directions of every edge: arxiv's citations have one, and OGB's examples
    train on both; the file of products has each edge once.
    """
    files: Files
    facts: Facts
    splits: int = 0
    """The number of published splits; without any, a random one is made."""
    feature_files: tuple[str, ...] = ()
    """The files that are not needed with `features: made`."""

    @property
    def dense(self) -> bool:
        """Whether features are stored dense, not as sparse rows."""
        return self.reader is None or self.reader.dense


def graph_sizes(nodes: int, edges: int, features: int, classes: int, train: int = 0) -> Facts:
    """Sizes in the order of PyG's tables, and the `train` nodes of a published split if known."""
    return Facts("graph", features, classes, nodes=nodes, edges=edges, train=train)


def _published_at(base: str, files: Iterable[str]) -> tuple[Download, ...]:
    return tuple(Download(f"{base}/{file}", file) for file in files)


def _raw(folder: str, downloads: tuple[Download, ...]) -> Files:
    """Files that are downloaded one by one into the folder where PyG looks for them."""
    return Files(f"{folder}/raw", tuple(each.file for each in downloads), downloads)


def _planetoid(name: str, facts: Facts) -> Published:
    """A graph in eight files, of which three hold features."""
    start = f"ind.{name.lower()}"
    features = tuple(f"{start}.{part}" for part in ("x", "tx", "allx"))
    others = tuple(f"{start}.{part}" for part in ("y", "ty", "ally", "graph", "test.index"))
    downloads = _published_at(
        "https://github.com/kimiyoung/planetoid/raw/master/data", features + others
    )
    reader = Pyg("Planetoid", name, pickled=True, normalized=True)
    return Published(reader, _raw(name, downloads), facts, splits=1, feature_files=features)


_FULL = "https://github.com/abojchevski/graph2gauss/raw/master/data"
_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_HETEROPHILOUS = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
_PTG = "https://graphmining.ai/datasets/ptg"


def _one_file(
    base: str, file: str, reader: Pyg, folder: str, facts: Facts, splits: int = 0
) -> Published:
    return Published(reader, _raw(folder, _published_at(base, [file])), facts, splits)


def _full(name: str, facts: Facts) -> Published:
    return _one_file(_FULL, f"{name}.npz", Pyg("CitationFull", name), name, facts)


def _amazon(name: str, facts: Facts) -> Published:
    file = f"amazon_electronics_{name.lower()}.npz"
    return _one_file(_SHCHUR, file, Pyg("Amazon", name), name, facts)


def _coauthor(name: str, facts: Facts) -> Published:
    file = f"ms_academic_{name[:3].lower()}.npz"
    return _one_file(_SHCHUR, file, Pyg("Coauthor", name), name, facts)


def _heterophilous(name: str, facts: Facts) -> Published:
    reader = Pyg("HeterophilousGraphDataset", name, dense=True)
    folder = name.lower().replace("-", "_")
    return _one_file(_HETEROPHILOUS, f"{folder}.npz", reader, folder, facts, splits=10)


def _embedded(dataset: str, file: str, facts: Facts) -> Published:
    return _one_file(_PTG, file, Pyg(dataset, dense=True), dataset, facts)


def _geom_gcn(reader: Pyg, folder: str, name: str, facts: Facts) -> Published:
    """A graph in two text files and ten splits of Geom-GCN."""
    base = "https://raw.githubusercontent.com/graphdml-uiuc-jlu/geom-gcn/master"
    texts = ("out1_node_feature_label.txt", "out1_graph_edges.txt")
    splits = (f"{name}_split_0.6_0.2_{number}.npz" for number in range(10))
    downloads = _published_at(f"{base}/new_data/{name}", texts)
    downloads += _published_at(f"{base}/splits", splits)
    return Published(reader, _raw(folder, downloads), facts, splits=10)


def _webkb(name: str, facts: Facts) -> Published:
    return _geom_gcn(Pyg("WebKB", name), name, name, facts)


def _graphsaint(dataset: str, drive_ids: tuple[str, str, str, str], facts: Facts) -> Published:
    """A graph in four files of GraphSAINT; `drive_ids` are those of its Google Drive."""
    names = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
    downloads = tuple(
        Download(f"https://drive.usercontent.google.com/download?id={number}&confirm=t", file)
        for number, file in zip(drive_ids, names, strict=True)
    )
    return Published(Pyg(dataset, dense=True), _raw(dataset, downloads), facts, splits=1)


def _reddit(facts: Facts) -> Published:
    url = "https://data.dgl.ai/dataset/reddit.zip"
    archive = Download(url, archive="zip", megabytes=1_300)
    files = Files("Reddit/raw", ("reddit_data.npz", "reddit_graph.npz"), (archive,))
    return Published(Pyg("Reddit", dense=True), files, facts, splits=1)


def _ogb(name: str, split: str, megabytes: int, facts: Facts) -> Published:
    """A node property prediction set of OGB."""
    tables = tuple(f"raw/{table}.csv.gz" for table in ("edge", "node-label", "node-feat"))
    splits = tuple(f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test"))
    url = f"http://snap.stanford.edu/ogb/data/nodeproppred/{name}.zip"
    archive = Download(url, archive="zip", megabytes=megabytes)
    files = Files(f"ogbn_{name}", tables + splits, (archive,))
    return Published(None, files, facts, splits=1, feature_files=tables[2:])


PUBLISHED = {
    "cora": _planetoid("Cora", graph_sizes(2_708, 10_556, 1_433, 7, 140)),
    "citeseer": _planetoid("CiteSeer", graph_sizes(3_327, 9_104, 3_703, 6, 120)),
    "pubmed": _planetoid("PubMed", graph_sizes(19_717, 88_648, 500, 3, 60)),
    "cora-full": _full("cora", graph_sizes(19_793, 126_842, 8_710, 70)),
    "cora-ml": _full("cora_ml", graph_sizes(2_995, 16_316, 2_879, 7)),
    "citeseer-full": _full("citeseer", graph_sizes(4_230, 10_674, 602, 6)),
    "dblp": _full("dblp", graph_sizes(17_716, 105_734, 1_639, 4)),
    "pubmed-full": _full("pubmed", graph_sizes(19_717, 88_648, 500, 3)),
    "computers": _amazon("Computers", graph_sizes(13_752, 491_722, 767, 10)),
    "photo": _amazon("Photo", graph_sizes(7_650, 238_162, 745, 8)),
    "cs": _coauthor("CS", graph_sizes(18_333, 163_788, 6_805, 15)),
    "physics": _coauthor("Physics", graph_sizes(34_493, 495_924, 8_415, 5)),
    "reddit": _reddit(graph_sizes(232_965, 114_615_892, 602, 41, 153_431)),
    "reddit2": _graphsaint(
        "Reddit2",
        (
            "1sncK996BM5lpuDf75lDFqCiDZyErc1c2",
            "1ZsHaJ0ussP1W722krmEIp_8pwKAoi5b3",
            "1JF3Pjv9OboMNYs2aXRQGbJbc4t_nDd5u",
            "1nJIKd77lcAGU4j-kVNx_AIGEkveIKz3A",
        ),
        graph_sizes(232_965, 23_213_838, 602, 41),
    ),
    "flickr": _graphsaint(
        "Flickr",
        (
            "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy",
            "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
            "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9",
            "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
        ),
        graph_sizes(89_250, 899_756, 500, 7),
    ),
    "roman-empire": _heterophilous("Roman-empire", graph_sizes(22_662, 65_854, 300, 18)),
    "amazon-ratings": _heterophilous("Amazon-ratings", graph_sizes(24_492, 186_100, 300, 5)),
    "minesweeper": _heterophilous("Minesweeper", graph_sizes(10_000, 78_804, 7, 2)),
    "tolokers": _heterophilous("Tolokers", graph_sizes(11_758, 1_038_000, 10, 2)),
    "questions": _heterophilous("Questions", graph_sizes(48_921, 307_080, 301, 2)),
    "facebook": _embedded("FacebookPagePage", "facebook.npz", graph_sizes(22_470, 342_004, 128, 4)),
    "lastfm-asia": _embedded("LastFMAsia", "lastfm_asia.npz", graph_sizes(7_624, 55_612, 128, 18)),
    "deezer-europe": _embedded(
        "DeezerEurope", "deezer_europe.npz", graph_sizes(28_281, 185_504, 128, 2)
    ),
    "actor": _geom_gcn(Pyg("Actor"), "Actor", "film", graph_sizes(7_600, 30_019, 932, 5)),
    "cornell": _webkb("cornell", graph_sizes(183, 298, 1_703, 5)),
    "texas": _webkb("texas", graph_sizes(183, 325, 1_703, 5)),
    "wisconsin": _webkb("wisconsin", graph_sizes(251, 515, 1_703, 5)),
    "ogbn-arxiv": _ogb("arxiv", "time", 81, graph_sizes(169_343, 2_315_598, 128, 40, 90_941)),
    "ogbn-products": _ogb(
        "products", "sales_ranking", 1_400, graph_sizes(2_449_029, 123_718_280, 100, 47, 196_615)
    ),
}


class PublishedGraph(Data):
    """A graph of the table, in the layout in which its publishers and PyG or OGB know it."""

    name: str
    features: Literal["real", "made"] = "real"
    """`made` replaces the features by random ones: for timing, not accuracy."""
    split: Whole = 0
    """The number of the published split; most graphs have one or none."""
    storage: Storage = "float32"

    @model_validator(mode="after")
    def _usable(self) -> Self:
        row = PUBLISHED.get(self.name)
        if row is None:
            raise ValueError(f"name: found {self.name!r}; allowed: {', '.join(PUBLISHED)}")
        if not 0 <= self.split < max(1, row.splits):
            last = row.splits - 1
            allowed = f"0 to {last}" if last > 0 else f"0, {self.name} has no other"
            raise ValueError(f"split: found {self.split}; allowed: {allowed}")
        if self.storage != "float32" and not (row.dense and self.features == "real"):
            raise ValueError(
                f"storage: found {self.storage!r}; allowed: float32 for features of mostly zeros"
            )
        return self

    @property
    def published(self) -> Published:
        return PUBLISHED[self.name]

    def facts(self) -> Facts:
        row = self.published
        if row.splits or row.facts.train:
            return row.facts
        # The random split of graphs that are published without one.
        return dataclasses.replace(row.facts, train=SHCHUR_EACH * row.facts.classes)

    def files(self) -> Files:
        """The files that are read; made features need none of their own."""
        row = self.published
        unneeded = () if self.features == "real" else row.feature_files
        names = tuple(name for name in row.files.names if name not in unneeded)
        return dataclasses.replace(row.files, names=names)
