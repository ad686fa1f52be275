"""Runs an engine parity check on real ranks, or alone, with a planted wrong or without."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gnnhpc.core.layout import Layout, processes_of
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.experiment.command_line_flags import build_experiment
from gnnhpc.records.schema import Check
from gnnhpc.training.setup import set_up
from gnnhpc.validation.engine_parity import check_engine
from gnnhpc.validation.steps.parity_slice import parity_slice
from tests.tools.forked import spawn

Plant = Callable[[], None]


def checked(
    raw: dict[str, Any], plant: Plant | None = None, *, first: int = 0, folder: Path | None = None
) -> Check:
    """The verdict for an experiment, given as plain data; a custom model is in `folder`.

    `plant` is a module-level function that breaks something in each rank.
    """
    layout = Layout.parse(raw.get("layout", "seq"))
    size = processes_of(layout, raw.get("engine", "native")).world_size
    (verdict,) = spawn(_check, size, raw, plant, first, folder)[0]
    return verdict


def _check(
    raw: dict[str, Any], plant: Plant | None, first: int, folder: Path | None
) -> list[Check]:
    if folder is not None:
        sys.path.insert(0, str(folder))
    if plant is not None:
        plant()
    experiment, environment = build_experiment(raw, "test"), read_environment()
    mesh = join(
        environment, experiment.process_layout, torch.device("cpu"), ends_at=experiment.loss_stage
    )
    parts = set_up(experiment, mesh, None)
    found = check_engine(experiment, parts, mesh, None, parity_slice(experiment, first=first))
    leave(mesh)
    return found
