"""A run whose units die is told of; it is measured rightly, and not accused of a wrong backward."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.tools.cells import gat, manifest_of, run, vig

DIES = vig(
    model={
        "name": "vig",
        "blocks": 4,
        "grapher_width": 3,
        "ffn_width": 5,
        "readout_width": 7,
    },
    data={"name": "synthetic-cifar10", "image_size": 13, "train": 82, "test": 75},
    layout="pp3",
    schedule="1f1b",
    batch_size=3,
    microbatches=3,
    train_steps=8,
    test_steps=0,
    optimizer={"name": "sgd", "lr": 0.005, "weight_decay": 5e-4},
    batchnorm="deferred",
    dtype="float64",
    seed=428318,
)
"""Gradients of 1e2 throw all units of the readout far below zero within the first steps."""


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_whose_training_dies_is_told_of_and_not_accused(tmp_path: Path) -> None:
    (cell,) = manifest_of(tmp_path, DIES)
    found = run(tmp_path, cell)
    assert set(found.statuses) == {0}, found.err
    norms = [line["grad_norm"] for line in found.lines(0, "step") if line["phase"] == "train"]
    died = norms.index(0.0)
    assert died > 0
    assert all(math.isfinite(norm) and norm > 1 for norm in norms[:died])
    assert norms[died:] == [0.0] * (len(norms) - died)
    checks = {check.name: check for check in found.result.audit}
    assert checks["gradients"].verdict == "suspect"
    told = f"no gradient from step {died} on on ranks [0, 1]: "
    assert checks["gradients"].detail.startswith(told)
    for name in ("self-check", "last self-check", "cuts", "gradients used", "gradient norm"):
        assert checks[name].verdict == "ok", checks[name]
    assert not [check for check in checks.values() if check.verdict == "invalid"]


DEAD = gat(
    model={"name": "sage", "aggregator": "pool", "layers": 4, "hidden": 3, "dropout": 0.9},
    data={"name": "synthetic-citation", "nodes": 301, "edges": 120, "features": 100},
    layout="pp3",
    microbatches=5,
    chunks="clustered",
    dtype="float64",
    train_steps=3,
    test_every=None,
    save_every=2,
    seed=273,
)
"""Three units a layer, of which few stay: no gradient goes through the third layer."""


@pytest.mark.distributed
def test_a_stage_that_is_dead_from_the_start_in_the_twin_too_is_not_accused(tmp_path: Path) -> None:
    (cell,) = manifest_of(tmp_path, DEAD)
    found = run(tmp_path, cell)
    assert set(found.statuses) == {0}, found.err
    norms = [line["grad_norm"] for line in found.lines(0, "step") if line["phase"] == "train"]
    assert norms == [0.0] * 3
    checks = {check.name: check for check in found.result.audit}
    assert checks["gradients"].verdict == "suspect"
    assert checks["gradients"].detail.startswith("no gradient from step 0 on on ranks [0")
    assert not [check for check in checks.values() if check.verdict == "invalid"]
