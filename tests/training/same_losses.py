"""Cells that must learn the same as another one, however they are computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from tests.tools.backends import needs_dgl, needs_pyg_sampler
from tests.tools.cells import Ran, RunOnce
from tests.tools.forked import Plant

LIBRARIES = {"dgl": needs_dgl, "pyg": needs_pyg_sampler}


@dataclass(frozen=True)
class Way:
    """Settings of a cell, and of another one that learns the same."""

    alone: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    plant: Plant | None = None
    """What the other one's ranks do first."""
    needs: str | None = None
    """A library's sampler."""


def invalid(found: Ran) -> list[str]:
    return [f"{c.name}: {c.detail}" for c in found.result.audit if c.verdict == "invalid"]


def both(
    run_once: RunOnce, alone: Experiment, other: Experiment, way: Way, name: str
) -> tuple[Ran, Ran]:
    """Both cells, valid; losses and metrics are the same to rounding in double precision."""
    if way.needs:
        LIBRARIES[way.needs]()
    planted = "whole" if way.plant is None else name
    found = run_once(alone), *run_once.attempts(planted, other, [way.plant])
    for each in found:
        assert set(each.statuses) == {0}, each.err
        assert not invalid(each)
    for phase in ("train", "test"):
        assert found[1].losses(phase) == pytest.approx(found[0].losses(phase), rel=1e-10)
    last = [each.steps(each.cell.experiment.loss_stage, "test") for each in found]
    for one, two in zip(*last, strict=True):
        metrics = [
            {name: value for name, value in step["metrics"].items() if "replica" not in name}
            for step in (one, two)
        ]
        assert metrics[1] == pytest.approx(metrics[0], rel=1e-9)
    one, two = found
    return one, two


def samples(found: Ran, phase: str = "train") -> list[int]:
    """Of each step, over all replicas."""
    layout = found.cell.experiment.layout
    firsts = layout.replica_ranks(0)
    each = [[step["samples"] for step in found.steps(rank, phase)] for rank in firsts]
    return [sum(step) for step in zip(*each, strict=True)]
