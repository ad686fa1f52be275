"""Synthetic images, whose class is a mean colour and the direction of stripes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from gnnhpc.data.data_settings import SyntheticCifar10
from gnnhpc.data.edges_and_splits import DATA_SEED, Floats, Ints

Pixels = npt.NDArray[np.uint8]

_AT_ONCE = 500


def synthetic_images(
    config: SyntheticCifar10, split: Literal["train", "test"]
) -> tuple[Pixels, Ints]:
    """Pixels uint8 [N, 3, S, S] and labels int64 [N]; classes are about equally frequent.

    A class has a mean colour, which a sum over nodes sees, and stripes two to four pixels wide of
    one direction, which a node sees with its 8 neighbours. Images differ in phase, brightness and
    noise. The first n images of a split do not depend on the number of images.
    """
    count, stream = (config.train, 0) if split == "train" else (config.test, 1)
    size = config.image_size
    pixels = np.empty((count, 3, size, size), dtype=np.uint8)
    labels = np.empty(count, dtype=np.int64)
    looks = _looks(config.classes)
    for start in range(0, count, _AT_ONCE):
        rng = np.random.default_rng([DATA_SEED, stream, config.classes, size, start])
        chosen = np.arange(_AT_ONCE) % config.classes
        drawn = _draw(*looks, rng.permutation(chosen), size, rng)
        stop = min(start + _AT_ONCE, count)
        pixels[start:stop], labels[start:stop] = (part[: stop - start] for part in drawn)
    return pixels, labels


def _looks(classes: int) -> tuple[Floats, Floats]:
    """The colour [classes, 3] in 0..1 and the stripes' wave vector [classes, 2] of each class."""
    rng = np.random.default_rng([DATA_SEED, 2, classes])
    # Of many candidates the colour farthest from those chosen before.
    colours = [np.full(3, 0.5)]
    for _ in range(classes):
        candidates = rng.uniform(0.25, 0.75, (256, 3))
        distance = np.linalg.norm(candidates[:, None] - np.array(colours)[None], axis=2).min(1)
        colours.append(candidates[distance.argmax()])
    angle = np.pi * np.arange(classes) / classes
    period = rng.uniform(2.5, 5.0, classes)
    wave = 2 * np.pi / period[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return np.array(colours[1:], dtype=np.float32), wave.astype(np.float32)


def _draw(
    colour: Floats, wave: Floats, labels: Ints, size: int, rng: np.random.Generator
) -> tuple[Pixels, Ints]:
    count = len(labels)
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    grid = np.stack([rows.ravel(), columns.ravel()]).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, (count, 1)).astype(np.float32)
    stripes = 0.15 * np.sin(wave[labels] @ grid + phase)
    tint = colour[labels] + rng.normal(0, 0.06, (count, 3)).astype(np.float32)
    noise = rng.standard_normal((count, 3, size * size), dtype=np.float32)
    shown = tint[:, :, None] + stripes[:, None, :] + 0.08 * noise
    pixels = np.clip(shown * 255, 0, 255).astype(np.uint8)
    return pixels.reshape(count, 3, size, size), labels
