"""CIFAR-10's binary files and synthetic images: what is read, what is made, damage by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.data.cifar10_images import load_images
from gnnhpc.data.data_settings import Cifar10, SyntheticCifar10
from gnnhpc.data.synthetic.images import synthetic_images
from tests.tools.data_files import RECORD, cifar_records, write_binary


def test_the_files_that_exist_are_read_in_order(tmp_path: Path) -> None:
    parts = {"data_batch_3": cifar_records(5, 3), "data_batch_1": cifar_records(7, 1)}
    for name, records in parts.items():
        write_binary(tmp_path, name, records)
    with pytest.raises(InputError, match=r"test_batch.bin: found no such file; .*data get cifar10"):
        Cifar10().check(tmp_path)
    write_binary(tmp_path, "test_batch", cifar_records(3, 0))
    images = load_images(Cifar10(), tmp_path, "train")
    together = np.concatenate([parts["data_batch_1"], parts["data_batch_3"]])
    assert len(images) == 12
    assert images.image_shape == (3, 32, 32)
    assert np.array_equal(images.labels, together[:, 0])
    chosen = np.array([11, 0, 6, 7, 0])
    assert np.array_equal(images.take(chosen).reshape(5, -1), together[chosen, 1:])
    assert np.array_equal(images.take(chosen, 8), images.take(chosen)[:, :, ::8, ::8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_become_nodes_by_row_and_column(dtype: torch.dtype) -> None:
    images = load_images(SyntheticCifar10(train=70, image_size=6), None, "train")
    chosen = np.random.default_rng(0).permutation(70)[:65]
    nodes = torch.empty((65, 36, 3), dtype=dtype)
    images.batch_into(chosen, nodes.numpy())
    pixels = torch.from_numpy(images.take(chosen))
    for image, row, column, channel in ((0, 0, 0, 0), (40, 5, 2, 1), (64, 3, 4, 2)):
        value = pixels[image, channel, row, column].to(dtype) / 255
        assert nodes[image, row * 6 + column, channel] == value
    assert torch.equal(nodes, (pixels.to(dtype) / 255).flatten(2).transpose(1, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(5 * RECORD - 100), "found 15265 bytes; allowed: a whole number of 3073-"),
        (b"\n" + bytes(RECORD - 1), "label of image 0: found 10; allowed: 0 to 9; delete"),
        (b"", "found 0 bytes"),
    ],
    ids=["cut short", "wrong label", "empty"],
)
def test_damage_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write_binary(tmp_path, "test_batch", cifar_records(5, 0))
    write_binary(tmp_path, "data_batch_1", cifar_records(5, 0)).write_bytes(content)
    with pytest.raises(InputError, match=f"data_batch_1.bin: {message}"):
        load_images(Cifar10(), tmp_path, "train")


def test_synthetic_images_do_not_depend_on_how_many_are_made() -> None:
    few = synthetic_images(SyntheticCifar10(train=30), "train")
    many = synthetic_images(SyntheticCifar10(train=1200), "train")
    assert np.array_equal(few[0], many[0][:30])
    assert np.array_equal(few[1], many[1][:30])
    test = synthetic_images(SyntheticCifar10(test=30), "test")
    assert not np.array_equal(few[0], test[0])
    assert np.bincount(many[1][:1000]).tolist() == [100] * 10
