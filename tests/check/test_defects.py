"""Verification catches each defect of the published studies when it is planted, and names it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.tools.defects import DEFECTS
from tests.tools.ranks import run_ranks

pytestmark = pytest.mark.distributed

NAMED = {
    "no backward communication": "backward: stages [0] have no gradient",
    "no backward communication of torch": "backward: stages [0] have no gradient",
    "summed micro-batches": "summed: gradients are 4 times the twin's, summed over micro-batches",
    "summed replicas": "summed: gradients are 2 times the twin's, summed over replicas",
    "mean of masked means": "masked means: the loss is the mean",
    "gradients left over": "after the last step though the first gradient agrees; the optimizer",
    "mismatched labels": "labels: 3 mini-batches whose labels",
    "unsharded replicas": "samples were seen more than once in an epoch",
    "cut in the wrong place": "cut: ranks [1] do not hold the layers planned",
    "uneven last batch": "uneven batch: 4 micro-batches, some of [1] rows, where 4 of 2 rows in",
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, Any]]:
    outputs = run_ranks([sys.executable, "-m", "tests.tools.defects"], 2)
    lines = [json.loads(line) for line in outputs[0].stdout.splitlines() if line.startswith("{")]
    return {line["defect"]: line for line in lines}


def test_all_were_planted(verdicts: dict[str, dict[str, Any]]) -> None:
    assert verdicts.keys() == DEFECTS.keys()


@pytest.mark.parametrize("defect", [name for name in DEFECTS if name.startswith("none")])
def test_no_defect_no_complaint(verdicts: dict[str, dict[str, Any]], defect: str) -> None:
    assert verdicts[defect]["passed"], verdicts[defect]
    assert verdicts[defect]["worst"] < 1e-5


@pytest.mark.parametrize("defect", NAMED)
def test_defect_is_named(verdicts: dict[str, dict[str, Any]], defect: str) -> None:
    said = verdicts[defect]
    assert not said["passed"]
    assert any(NAMED[defect] in cause for cause in said["causes"]), said
