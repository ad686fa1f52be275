"""CIFAR-10 files: both layouts, any subset, damage named, fetched when absent."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.data import data_settings
from gnnhpc.data.data_files import read_checksums
from gnnhpc.data.data_settings import Cifar10, SyntheticCifar10
from gnnhpc.data.images import load_images
from tests.tools.data_files import (
    EVIL,
    RECORD,
    cifar_archive,
    cifar_records,
    write_binary,
    write_python,
)


def test_a_record_is_a_label_and_three_planes(tmp_path: Path) -> None:
    records = cifar_records(4, 1)
    write_binary(tmp_path, "data_batch_1", records)
    images = load_images(Cifar10(), tmp_path, "train")
    assert images.image_shape == (3, 32, 32)
    assert images.labels.tolist() == records[:, 0].tolist()
    row, column, channel = 5, 7, 2
    value = records[2, 1 + channel * 1024 + row * 32 + column]
    assert images.pixels[2, channel, row, column] == value
    nodes = images.batch(np.array([2]))
    assert nodes.shape == (1, 1024, 3)
    assert nodes[0, row * 32 + column, channel] == torch.tensor(value / 255, dtype=torch.float32)


def test_any_subset_of_the_files_in_order(tmp_path: Path) -> None:
    parts = {"data_batch_3": cifar_records(5, 3), "data_batch_1": cifar_records(7, 1)}
    for name, records in parts.items():
        write_binary(tmp_path, name, records)
    images = load_images(Cifar10(), tmp_path, "train")
    together = np.concatenate([parts["data_batch_1"], parts["data_batch_3"]])
    assert len(images) == 12
    assert np.array_equal(images.labels, together[:, 0])
    assert np.array_equal(images.pixels.reshape(12, -1), together[:, 1:])
    chosen = np.array([11, 0, 6, 7, 0])
    assert np.array_equal(images.take(chosen).reshape(5, -1), together[chosen, 1:])
    assert np.array_equal(images.take(chosen, 8), images.take(chosen)[:, :, ::8, ::8])


def test_the_python_layout_says_the_same(tmp_path: Path) -> None:
    found = []
    for write, name in ((write_binary, "binary"), (write_python, "python")):
        (tmp_path / name).mkdir()
        for file in ("test_batch", "data_batch_2"):
            write(tmp_path / name, file, cifar_records(6, 2))
        found.append(load_images(Cifar10(), tmp_path / name, "test"))
    binary, python = found
    assert np.array_equal(binary.pixels, python.pixels)
    assert np.array_equal(binary.labels, python.labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_exact(dtype: torch.dtype) -> None:
    images = load_images(SyntheticCifar10(train=70, image_size=6), None, "train")
    chosen = np.random.default_rng(0).permutation(70)[:65]
    expected = torch.from_numpy(images.pixels[chosen]).to(dtype) / 255
    found = images.batch(chosen, dtype)
    assert found.dtype == dtype
    assert torch.equal(found, expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            cifar_records(5, 0).tobytes()[:-100],
            "found 15265 bytes; allowed: a whole number of 3073-",
        ),
        (b"\n" + bytes(RECORD - 1), "label of image 0: found 10; allowed: 0 to 9; delete"),
        (b"", "found 0 bytes"),
    ],
    ids=["cut short", "wrong label", "empty"],
)
def test_damage_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = write_binary(tmp_path, "data_batch_1", cifar_records(5, 0))
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"data_batch_1.bin: {message}"):
        load_images(Cifar10(), tmp_path, "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (EVIL, r"data_batch_1: found a damaged file \(it names posix.mkdir"),
        (pickle.dumps({b"labels": [1]}), "no data and labels"),
        (pickle.dumps([1, 2]), "no data and labels"),
        (pickle.dumps({b"data": np.zeros((2, 9), "u1"), b"labels": [1, 2]}), r"uint8 \[2, 9\]"),
        (pickle.dumps({b"data": np.zeros((1, 3072), "u1"), b"labels": [-1]}), "found -1"),
        (b"\x80\x02}q\x01(U", "a damaged file"),
        (b"", "a damaged file"),
    ],
)
def test_a_pickle_may_hold_arrays_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_images(Cifar10(), tmp_path, "train")
    assert not (tmp_path / "was-here").exists()


def test_absent_images_are_downloaded_once(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    archive = cifar_archive(tmp_path / "site", server)
    monkeypatch.setattr(data_settings, "CIFAR_ARCHIVE", archive)
    train = load_images(Cifar10(), root, "train")
    assert np.array_equal(train.labels[:4], cifar_records(4, 1)[:, 0])
    (tmp_path / "site" / "cifar.tar.gz").unlink()
    assert len(load_images(Cifar10(), root, "test")) == 4
    sums = read_checksums(root / "cifar-10-batches-bin")
    assert sorted(sums) == [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
