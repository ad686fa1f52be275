"""Every graph as one kind of object, whatever it is read or made from.

Graphs published without a split get that of Shchur et al. 2018 (arXiv:1811.05868), section 4.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.cache import Arrays, load_or_build
from gnnhpc.data.generators import (
    DATA_SEED,
    Mask,
    first_of_each_class,
    made_words,
    mask_of,
    synthetic_graph,
)
from gnnhpc.data.own_graph import OwnGraph
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.published_files import Pyg
from gnnhpc.data.roots import existing_root
from gnnhpc.data.settings import Data, RedditShaped, SyntheticCitation
from gnnhpc.data.skewed import skewed_graph, skewed_version
from gnnhpc.data.splits import SHCHUR_EACH
from gnnhpc.data.stored_halves import with_storage
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.in_edges import InEdges


def load_graph(config: Data, root: Path | None, seed: int = DATA_SEED) -> Graph:
    """The graph of a configuration, from files, a cache of them, or a generator.

    `seed` draws made-up features and the split of graphs published without one (20 a class to
    train, 30 to validate, the rest to test, as Shchur et al.); it is the data's, not the
    experiment's. Raises InputError naming a missing or damaged file and what to do.
    """
    arrays = _READERS[type(config)](config, root)
    facts = config.facts()
    labels, edges = arrays["labels"], arrays["edges"]
    rng = np.random.default_rng([seed, len(labels)])
    if "train" in arrays:
        masks = tuple(arrays[split] for split in SPLITS)
    else:
        masks = shchur_split(labels, facts.classes, rng)
    return Graph(
        config.label,
        _features(arrays, (len(labels), facts.features), rng),
        torch.from_numpy(labels),
        torch.from_numpy(edges),
        {split: torch.from_numpy(mask) for split, mask in zip(SPLITS, masks, strict=True)},
        facts.classes,
        _in_edges(arrays),
    )


def _made(config: SyntheticCitation, root: Path | None) -> Arrays:
    made = synthetic_graph(config)
    words = made.features
    return {
        "labels": made.labels,
        "edges": made.edges,
        **{split: getattr(made, split) for split in SPLITS},
        "indptr": words.indptr,
        "columns": words.columns,
        "values": words.values,
    }


def skewed_arrays(config: RedditShaped, root: Path | None) -> Arrays:
    """The arrays of a graph of Reddit's shape, which are kept once it has been made."""
    arrays = load_or_build(config, [], _make_skewed, made_by=skewed_version())
    return with_storage(config, [], arrays, skewed_version())


def _make_skewed(config: RedditShaped, raw: list[Path], work: Path) -> Arrays:
    made = skewed_graph(config)
    return _with_in_edges(
        {
            "labels": made.labels,
            "edges": made.edges,
            "dense": made.features,
            **{split: getattr(made, split) for split in SPLITS},
        }
    )


def published_arrays(config: PublishedGraph, root: Path | None) -> Arrays:
    """The arrays of a published graph, which are kept once its files have been read."""
    raw = config.raw_files(existing_root(config.name, root))
    return with_storage(config, raw, load_or_build(config, raw, _read_published))


def _read_published(config: PublishedGraph, raw: list[Path], work: Path) -> Arrays:
    """Readers are imported when files are read: a cached graph needs none of them."""
    reader = config.published.reader
    if isinstance(reader, Pyg):
        from gnnhpc.data.readers.pyg_reader import read_pyg

        return _with_in_edges(read_pyg(config, reader, raw, work))
    from gnnhpc.data.readers.ogb_reader import read_ogb

    return _with_in_edges(read_ogb(config, raw))


def _own(config: OwnGraph, root: Path | None) -> Arrays:
    from gnnhpc.data.readers.own_graph_reader import read_own_graph

    return read_own_graph(Path(config.path), config.digest, config.classes)


_READERS: dict[type[Data], Callable[[Any, Path | None], Arrays]] = {
    SyntheticCitation: _made,
    RedditShaped: skewed_arrays,
    PublishedGraph: published_arrays,
    OwnGraph: _own,
}


def _with_in_edges(arrays: Arrays) -> Arrays:
    """With the edges by target, for ranks of a host to share."""
    edges = torch.from_numpy(arrays["edges"])
    found = InEdges.of(edges, len(arrays["labels"]))
    return arrays | {"in_indptr": found.indptr.numpy(), "in_source": found.source.numpy()}


def _in_edges(arrays: Arrays) -> InEdges | None:
    if "in_source" not in arrays:
        return None
    return InEdges(*(torch.from_numpy(arrays[name]) for name in ("in_indptr", "in_source")))


def _features(arrays: Arrays, shape: tuple[int, int], rng: np.random.Generator) -> Tensor:
    """Those of the arrays; made-up ones where they have none."""
    if "dense" in arrays:
        return torch.from_numpy(arrays["dense"])
    if "indptr" in arrays:
        return sparse_rows(arrays["indptr"], arrays["columns"], arrays["values"], shape)
    words = made_words(*shape, rng)
    return sparse_rows(words.indptr, words.columns, words.values, words.shape)


def sparse_rows(
    indptr: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
    shape: tuple[int, int],
) -> Tensor:
    """A torch CSR matrix over these arrays, without copying them."""
    with warnings.catch_warnings():
        # What is used of CSR here is a container and one product; torch calls all of it beta.
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr),
            torch.from_numpy(columns),
            torch.from_numpy(values),
            shape,
            check_invariants=True,
        )


def shchur_split(
    labels: npt.NDArray[np.int64], classes: int, rng: np.random.Generator
) -> tuple[Mask, Mask, Mask]:
    """Masks of train (20 a class), val (30 a class) and test (the rest), section 4 there."""
    order = rng.permutation(len(labels))
    train = first_of_each_class(order, labels, classes, SHCHUR_EACH)
    rest = order[~np.isin(order, train)]
    val = first_of_each_class(rest, labels, classes, 30)
    test = rest[~np.isin(rest, val)]
    nodes = len(labels)
    return mask_of(train, nodes), mask_of(val, nodes), mask_of(test, nodes)
