"""Citation, co-purchase, co-author and post graphs as one kind of object.

Planetoid: Yang, Cohen and Salakhutdinov 2016 (arXiv:1603.08861). Amazon and Coauthor: Shchur et
al. 2018 (arXiv:1811.05868). Reddit: Hamilton, Ying and Leskovec 2017 (arXiv:1706.02216).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.data.cache import Arrays, load_or_build
from gnnhpc.data.generators import (
    DATA_SEED,
    Mask,
    first_of_each_class,
    made_words,
    mask_of,
    synthetic_graph,
)
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.roots import check_raw, existing_root
from gnnhpc.data.settings import Data, SyntheticCitation
from gnnhpc.graphs.graph import Graph

MASKS = ("train", "val", "test")


def load_graph(config: Data, root: Path | None, seed: int = DATA_SEED) -> Graph:
    """The graph of a configuration, from files, a cache of them, or a generator.

    `seed` draws made-up features and the split of graphs published without one (20 a class to
    train, 30 to validate, the rest to test, as Shchur et al.); it is the data's, not the
    experiment's. Raises InputError naming a missing or damaged file and what to do.
    """
    classes = config.facts().classes
    if isinstance(config, SyntheticCitation):
        made = synthetic_graph(config)
        words, masks = made.features, (made.train, made.val, made.test)
        features = sparse_rows(words.indptr, words.columns, words.values, words.shape)
        return _graph(config.name, features, made.labels, made.edges, masks, classes)
    assert isinstance(config, PublishedGraph)
    folder = existing_root(config, root)
    arrays = load_or_build(config, check_raw(config, folder), _read_published)
    labels = arrays["labels"]
    rng = np.random.default_rng([seed, len(labels)])
    if config.published.split:
        masks = (arrays["train"], arrays["val"], arrays["test"])
    else:
        masks = shchur_split(labels, classes, rng)
    features = _features(config, arrays, len(labels), rng)
    return _graph(config.name, features, labels, arrays["edges"], masks, classes)


def _read_published(config: PublishedGraph, raw: list[Path], work: Path) -> Arrays:
    from gnnhpc.data.readers.pyg_reader import read_published

    return read_published(config, raw, work)


def _features(
    config: PublishedGraph, arrays: Arrays, nodes: int, rng: np.random.Generator
) -> Tensor:
    columns = config.facts().features
    if config.features == "made":
        words = made_words(nodes, columns, rng)
        return sparse_rows(words.indptr, words.columns, words.values, words.shape)
    if "dense" in arrays:
        return torch.from_numpy(arrays["dense"])
    return sparse_rows(arrays["indptr"], arrays["columns"], arrays["values"], (nodes, columns))


def _graph(
    name: str,
    features: Tensor,
    labels: npt.NDArray[np.int64],
    edges: npt.NDArray[np.int64],
    masks: tuple[Mask, Mask, Mask],
    classes: int,
) -> Graph:
    return Graph(
        name,
        features,
        torch.from_numpy(labels),
        torch.from_numpy(edges),
        {key: torch.from_numpy(mask) for key, mask in zip(MASKS, masks, strict=True)},
        classes,
    )


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
    train = first_of_each_class(order, labels, classes, 20)
    rest = order[~np.isin(order, train)]
    val = first_of_each_class(rest, labels, classes, 30)
    test = rest[~np.isin(rest, val)]
    nodes = len(labels)
    return mask_of(train, nodes), mask_of(val, nodes), mask_of(test, nodes)
