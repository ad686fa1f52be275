"""What rounding allows a loss is what torch's own sums need, and hardly more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gnnhpc.check.watches.plain_pairs import plain_loss
from gnnhpc.check.watches.plain_tally import plain_tally
from gnnhpc.check.watches.sum_rounding import most_added

DTYPES = (torch.float32, torch.float64)


def _confident(sure: float, outputs: Tensor, labels: Tensor) -> Tensor:
    """With what is right ahead by `sure`."""
    ahead = functional.one_hot(labels.clamp(min=0), outputs.shape[1]) * sure
    return outputs + ahead.to(outputs.dtype)


SIZES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ordinary": lambda outputs, labels: outputs,
    "alike": lambda outputs, labels: outputs[:1].expand(outputs.shape).contiguous(),
    "equal": lambda outputs, labels: torch.zeros_like(outputs) + 0.3,
    "small": lambda outputs, labels: outputs * 1e-3,
    "large": lambda outputs, labels: outputs * 40,
    "huge": lambda outputs, labels: outputs * 1e4,
    "far from zero": lambda outputs, labels: outputs + 1e4,
    "sure by 10": partial(_confident, 10.0),
    "sure by 15": partial(_confident, 15.0),
    "sure by 30": partial(_confident, 30.0),
    "sure and far": lambda outputs, labels: _confident(3e3, outputs * 1e3, labels),
    "masked": lambda outputs, labels: _masked(outputs, labels, -1e9),
    "masked by infinity": lambda outputs, labels: _masked(outputs, labels, -torch.inf),
}


def _masked(outputs: Tensor, labels: Tensor, fill: float) -> Tensor:
    last = functional.one_hot(torch.zeros_like(labels), outputs.shape[1]).bool()
    return outputs.masked_fill(last & (labels != 0)[:, None], fill)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_loss_of_classes(size: str, dtype: torch.dtype) -> None:
    for rows, classes in itertools.product((1, 5, 50, 3_000, 60_000), (2, 7, 41)):
        torch.manual_seed(rows)
        labels = torch.randint(0, classes, (rows,))
        outputs = SIZES[size](torch.randn(rows, classes, dtype=dtype), labels)
        labels[1::7] = -1
        log = functional.log_softmax(outputs, 1)
        for kind, given in (("logits", outputs), ("log_probabilities", log)):
            of = functional.cross_entropy if kind == "logits" else functional.nll_loss
            found = of(given, labels, reduction="sum", ignore_index=-1)
            tally = plain_tally([given], [labels.numpy()], kind)  # type: ignore[arg-type]
            assert abs(float(found) - tally.loss) <= tally.loss_error, (rows, classes, kind)


@pytest.mark.parametrize(
    ("kind", "sure", "classes", "most"),
    [
        ("logits", 0.0, 7, 4e-5),
        ("logits", 10.0, 7, 6e-3),
        ("logits", 10.0, 2, 6e-3),
        ("log_probabilities", 10.0, 7, 4e-5),
        ("log_probabilities", 15.0, 2, 4e-5),
    ],
)
def test_an_error_of_a_sure_loss_is_no_rounding(
    kind: Literal["logits", "log_probabilities"], sure: float, classes: int, most: float
) -> None:
    """How large its logits are does not make it less exact."""
    torch.manual_seed(0)
    labels = torch.randint(0, classes, (2708,))
    outputs = _confident(sure, torch.randn(2708, classes), labels)
    if kind == "log_probabilities":
        outputs = functional.log_softmax(outputs, 1)
    tally = plain_tally([outputs], [labels.numpy()], kind)
    assert 0 < tally.loss_error < most * tally.loss


@pytest.mark.parametrize("rows", [2, 50, 3_000, 1_000_000])
@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_loss_of_links(rows: int, size: float, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    outputs = torch.randn(100, 8, dtype=dtype) * size
    pairs = torch.stack([*torch.randint(0, 100, (2, rows)), torch.arange(rows) % 2], 1)
    one, other, labels = outputs[pairs[:, 0]], outputs[pairs[:, 1]], pairs[:, 2].to(dtype)
    scores = (one * other).sum(1)
    found = functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
    tally = plain_loss([outputs], [pairs.numpy()], "embeddings")
    assert abs(float(found) - tally.value) <= tally.error
    assert tally.error < torch.finfo(dtype).eps * (
        400 * tally.value + 40 * float(scores.abs().sum())
    )


def test_numbers_that_are_alike_lose_most() -> None:
    """Each is rounded the same way."""
    for rows in (1_000, 100_000, 10_000_000):
        outputs = torch.full((rows, 1), -0.1)
        found = functional.nll_loss(outputs, torch.zeros(rows, dtype=torch.int64), reduction="sum")
        exact = float(outputs[0].double()) * -rows
        assert abs(float(found) - exact) <= most_added(rows, on_gpu=False) * 2**-23 * exact


def test_no_more_than_all_are_added() -> None:
    rows = np.arange(300)
    assert all(most_added(n, on_gpu=False) <= n and most_added(n, on_gpu=True) <= n for n in rows)
