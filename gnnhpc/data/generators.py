"""Data made up with structure that can be learned: the same for every run, and no file needed.

Plain arrays in, plain arrays out; `cifar` and `citation` wrap them as their own kinds of data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gnnhpc.data.settings import SyntheticCifar10, SyntheticCitation
from gnnhpc.data.splits import planetoid_each, planetoid_scale

DATA_SEED = 20_240_229
"""Seeds generators and splits: data stay the same whatever an experiment's own seed is."""

Pixels = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

_AT_ONCE = 500
_TOPICAL = 0.2


def synthetic_images(
    config: SyntheticCifar10, split: Literal["train", "test"]
) -> tuple[Pixels, Ints]:
    """Pixels uint8 [N, 3, S, S] and labels int64 [N], classes about equally often.

    A class is a mean colour (what a sum over nodes sees) and stripes two to four pixels wide of
    one direction (what a node sees with its 8 neighbours); images differ in phase, brightness
    and noise. The first n images of a split do not depend on how many are made.
    """
    count, stream = (config.train, 0) if split == "train" else (config.test, 1)
    size = config.image_size
    pixels = np.empty((count, 3, size, size), dtype=np.uint8)
    labels = np.empty(count, dtype=np.int64)
    looks = _looks(config.classes)
    for start in range(0, count, _AT_ONCE):
        rng = np.random.default_rng([DATA_SEED, stream, config.classes, size, start])
        chosen = np.arange(_AT_ONCE) % config.classes
        drawn = _draw(looks, rng.permutation(chosen), size, rng)
        stop = min(start + _AT_ONCE, count)
        pixels[start:stop], labels[start:stop] = (part[: stop - start] for part in drawn)
    return pixels, labels


@dataclass(frozen=True)
class _Looks:
    """One row a class: colour [classes, 3] in 0..1, stripes' wave vector [classes, 2]."""

    colour: Floats
    wave: Floats


def _looks(classes: int) -> _Looks:
    rng = np.random.default_rng([DATA_SEED, 2, classes])
    # Colours far apart: of many candidates the one farthest from those chosen before.
    colours = [np.full(3, 0.5)]
    for _ in range(classes):
        candidates = rng.uniform(0.25, 0.75, (256, 3))
        distance = np.linalg.norm(candidates[:, None] - np.array(colours)[None], axis=2).min(1)
        colours.append(candidates[distance.argmax()])
    angle = np.pi * np.arange(classes) / classes
    period = rng.uniform(2.5, 5.0, classes)
    wave = 2 * np.pi / period[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return _Looks(np.array(colours[1:], dtype=np.float32), wave.astype(np.float32))


def _draw(looks: _Looks, labels: Ints, size: int, rng: np.random.Generator) -> tuple[Pixels, Ints]:
    count = len(labels)
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    grid = np.stack([rows.ravel(), columns.ravel()]).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, (count, 1)).astype(np.float32)
    stripes = 0.15 * np.sin(looks.wave[labels] @ grid + phase)
    tint = looks.colour[labels] + rng.normal(0, 0.06, (count, 3)).astype(np.float32)
    noise = rng.standard_normal((count, 3, size * size), dtype=np.float32)
    shown = tint[:, :, None] + stripes[:, None, :] + 0.08 * noise
    pixels = np.clip(shown * 255, 0, 255).astype(np.uint8)
    return pixels.reshape(count, 3, size, size), labels


@dataclass(frozen=True)
class SparseRows:
    """A matrix in CSR form with columns sorted within each row."""

    indptr: Ints
    columns: Ints
    values: Floats
    shape: tuple[int, int]


@dataclass(frozen=True)
class MadeGraph:
    """A graph of planted communities."""

    features: SparseRows
    labels: Ints
    edges: Ints
    """int64 [2, E] directed, sorted by (target, source), both directions of each edge."""
    train: Mask
    val: Mask
    test: Mask


def synthetic_graph(config: SyntheticCitation) -> MadeGraph:
    """Communities on a ring, each of one class, with words that hint at it.

    Four edges in five stay in a community and most of the others go to the next on the ring, so
    that neighbours mostly share a class and good partitions exist. Node numbers are shuffled:
    consecutive ranges lose most edges, as they do on published graphs. A node's own words leave
    its class uncertain; those of its neighbourhood together do not.
    """
    sizes = [config.nodes, config.edges, config.features, config.classes]
    rng = np.random.default_rng([DATA_SEED, 3, *sizes])
    nodes, classes = config.nodes, config.classes
    degree = config.edges / nodes
    size = int(np.clip(4 * degree, 24, max(24, nodes // (2 * classes))))
    communities = max(min(classes, nodes), nodes // size)
    place = rng.permutation(nodes)
    community = place * communities // nodes
    # Every class gets as many communities as the next, in an order without pattern.
    labels = rng.permutation(np.arange(communities) % classes)[community].astype(np.int64)
    edges = _community_edges(community, communities, config.edges, rng)
    features = made_words(nodes, config.features, rng, labels, classes)
    train, val, test = planetoid_split(labels, classes, rng)
    return MadeGraph(features, labels, edges, train, val, test)


def _community_edges(
    community: Ints, communities: int, wanted: int, rng: np.random.Generator
) -> Ints:
    """About `wanted` directed edges, both directions of each, no loops, no duplicates."""
    nodes = len(community)
    members = np.argsort(community, kind="stable")
    first = np.searchsorted(community[members], np.arange(communities + 1))
    pairs = np.empty(0, dtype=np.int64)
    half = min(wanted // 2, nodes * (nodes - 1) // 2)
    for _ in range(8):
        missing = half - len(pairs)
        if missing <= 0:
            break
        count = int(1.1 * missing) + 16
        source = rng.integers(0, nodes, count)
        kind = rng.random(count)
        home = (community[source] + np.where(kind < 0.8, 0, 1)) % communities
        drawn = rng.random(count)
        near = first[home] + (drawn * (first[home + 1] - first[home])).astype(np.int64)
        # A cube of a uniform number favours the first nodes: a few are cited by many.
        far = (drawn**3 * nodes).astype(np.int64)
        target = np.where(kind < 0.95, members[near], far)
        low, high = np.minimum(source, target), np.maximum(source, target)
        fresh = (low * nodes + high)[low != high]
        pairs = distinct(np.concatenate([pairs, fresh]))
    if len(pairs) > half:
        pairs = rng.choice(pairs, half, replace=False)
    low, high = pairs // nodes, pairs % nodes
    # Target times nodes plus source, so that one sort gives the order wanted.
    key = np.sort(np.concatenate([low * nodes + high, high * nodes + low]))
    return np.stack([key % nodes, key // nodes])


def made_words(
    nodes: int,
    columns: int,
    rng: np.random.Generator,
    labels: Ints | None = None,
    classes: int = 1,
) -> SparseRows:
    """Rows of unit length of weighted words: a tenth of the columns, 6 to 50, varying by row.

    Of fewer than 7 columns most are used. With labels, one word in five is of the class's own
    topic; without, the words say nothing.
    """
    mean = min(50.0, max(6.0, columns / 10), 0.9 * columns)
    # Words are drawn with repetition; this many draws leave `mean` different ones.
    draws = np.log(1 - mean / columns) / np.log(1 - 1 / columns)
    counts = np.maximum(1, rng.poisson(draws, nodes))
    row = np.repeat(np.arange(nodes), counts)
    word = rng.integers(0, columns, len(row))
    if labels is not None:
        width = max(1, columns // (2 * classes))
        topic = (labels[row] * columns // classes + rng.integers(0, width, len(row))) % columns
        word = np.where(rng.random(len(row)) < _TOPICAL, topic, word)
    key = distinct(row * columns + word)
    row, word = key // columns, key % columns
    weight = rng.uniform(0.5, 1.5, len(key)).astype(np.float32)
    length = np.sqrt(np.bincount(row, weight**2, minlength=nodes))
    indptr = np.searchsorted(row, np.arange(nodes + 1)).astype(np.int64)
    return SparseRows(indptr, word, (weight / length[row]).astype(np.float32), (nodes, columns))


def distinct(keys: Ints) -> Ints:
    """The sorted keys, each once; numpy's own `unique` hashes, sixty times slower than a sort."""
    ordered = np.sort(keys)
    new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def planetoid_split(
    labels: Ints, classes: int, rng: np.random.Generator
) -> tuple[Mask, Mask, Mask]:
    """Masks of train, val and test: 20 a class, 500 and 1000, or like shares of few nodes."""
    nodes = len(labels)
    scale, each = planetoid_scale(nodes, classes), planetoid_each(nodes, classes)
    order = rng.permutation(nodes)
    train = first_of_each_class(order, labels, classes, each)[: nodes // 2]
    rest = order[~np.isin(order, train)]
    val = max(1, int(500 * scale))
    test = max(1, int(1000 * scale))
    return (
        mask_of(train, nodes),
        mask_of(rest[:val], nodes),
        mask_of(rest[val : val + test], nodes),
    )


def first_of_each_class(order: Ints, labels: Ints, classes: int, count: int) -> Ints:
    """The first `count` nodes of each class, in this order of nodes."""
    return np.concatenate([order[labels[order] == c][:count] for c in range(classes)])


def mask_of(chosen: Ints, nodes: int) -> Mask:
    """True where a node was chosen."""
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[chosen] = True
    return mask
