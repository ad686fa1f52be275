"""The hash behind dropout, compared with the same arithmetic on Python's own integers."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.engines.stage import layer_seed
from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.dropout_mask import Mask, MaskKeys, layer_mask, number_entries
from gnnhpc.kernels.rowwise import drop_rows
from tests.tools.backends import computed_by, device_of

WORD = st.integers(0, 2**32 - 1)


def hashed(entry: int, first: int, second: int) -> int:
    """Two rounds of multiply and xorshift in 32 bits, half of the key before each."""
    x = (entry + first) % 2**32
    x = (x ^ (x >> 16)) * 0x21F0AAAD % 2**32
    x = ((x ^ (x >> 15)) + second) % 2**32
    x = x * 0x735A2D97 % 2**32
    return x ^ (x >> 15)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), WORD, WORD, st.data())
def test_an_entry_stays_where_its_hash_reaches_the_threshold(
    entries: list[int], first: int, second: int, data: st.DataObject
) -> None:
    hashes = [hashed(entry, first, second) for entry in entries]
    # At the edge itself: one of the hashes, and its neighbours.
    threshold = data.draw(st.sampled_from(hashes)) + data.draw(st.sampled_from([-1, 0, 1]))
    keeps = Mask(first, second, threshold, 1.0).keeps(torch.tensor(entries))
    assert keeps.dtype == torch.bool
    assert keeps.tolist() == [value >= threshold for value in hashes]


def test_keys_and_seeds_never_change() -> None:
    """Written out: with others every recorded loss would be another."""
    assert layer_seed(0, "block0.grapher") == 13_947_324_011_667_947
    digest = hashlib.sha256(b"3/41/layer0.dropout").digest()
    mask = layer_mask(3, 41, "layer0.dropout", 0.6)
    assert mask.first == int.from_bytes(digest[:4], "big")
    assert mask.second == int.from_bytes(digest[4:8], "big")
    assert mask.threshold == round(0.6 * 2**32)
    assert mask.scale == pytest.approx(2.5)
    kept = mask.keeps(torch.arange(100_000)).double().mean()
    assert float(kept) == pytest.approx(0.4, abs=0.01)


def test_thresholds_stay_within_32_bits() -> None:
    found = [layer_mask(0, 0, "a", p).threshold for p in (0, 1 - 2**-40, 1 - 2**-32, 1 - 2**-31)]
    assert found == [0, 2**32 - 1, 2**32 - 1, 2**32 - 2]


def test_entries_are_numbered_by_node_and_column() -> None:
    assert number_entries(torch.tensor([2, 5]), 3).tolist() == [[6, 7, 8], [15, 16, 17]]


@pytest.mark.parametrize("code", ["c++", "torch", "triton"])
def test_masks_by_keys_in_memory_are_those_of_their_step(code: Backend) -> None:
    device = torch.device(device_of(code))
    keys, x = MaskKeys(device), torch.ones(40, 8, device=device)
    rows = torch.arange(40, device=device)
    # Made in step 3, as in a capture, and read in the steps that come after.
    keys.bring(3)
    masks = {name: keys.mask(0, name, 0.5) for name in ("conv1", "conv2")}
    with computed_by(code):
        for step in (3, 4, 11):
            keys.bring(step)
            for name, mask in masks.items():
                expected = drop_rows(x, rows, layer_mask(0, step, name, 0.5))
                assert torch.equal(drop_rows(x, rows, mask), expected)
                assert torch.equal(drop_rows(x, rows, keys.mask(0, name, 0.5)), expected)
