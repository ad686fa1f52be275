"""A tensor's bytes are those of its numbers in their order, whatever view it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnhpc.models.tensor_bytes import bytes_of

COMPLEX = torch.tensor([1 + 2j, 3j])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(()),
        torch.zeros(0, 3),
        torch.arange(6).view(2, 3).t(),
        torch.arange(10)[3:5],
        torch.ones(1, 1).expand(3, 4),
        COMPLEX.conj(),
        COMPLEX.conj().imag,
        COMPLEX[:1].conj().imag,
        COMPLEX[1:].real,
    ],
    ids=lambda tensor: f"{tensor.dtype} {tensor.stride()}",
)
def test_bytes_are_those_of_the_numbers(tensor: Tensor) -> None:
    numbers = tensor.resolve_conj().resolve_neg().numpy()
    assert bytes_of(tensor).numpy().tobytes() == numbers.tobytes()


def test_bytes_of_types_that_numpy_does_not_know() -> None:
    assert bytes_of(torch.tensor([1.0], dtype=torch.bfloat16)).tolist() == [0x80, 0x3F]
