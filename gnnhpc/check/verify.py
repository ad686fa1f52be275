"""Verifies that a layout computes what it should: real ranks against a twin in plain torch.

The check that every attempt begins with (`gnnhpc.check.self_check`), by itself: more steps, and a
larger slice of the data.
"""

from __future__ import annotations

from pathlib import Path

import torch

from gnnhpc.check.check_slice import FLOPS, check_slice
from gnnhpc.check.compare_gradients import Verdict
from gnnhpc.check.self_check import self_check
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.devices import choose_devices
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.mesh import join, leave
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.train.setup import set_up

STEPS = 3
"""Training steps; each is compared, and the parameters after it."""
TIMES_FLOPS = 8.0
"""Of a self-check's work."""


def verify_rank(
    experiment: Experiment,
    environment: Environment,
    root: Path | None,
    steps: int = STEPS,
    secret_file: Path | None = None,
) -> Verdict | None:
    """Run as one rank of the layout; rank 0 returns the verdict, the others None.

    `secret_file` is where ranks keep what they know each other by, if the launcher sets no port.
    Raises InputError for an experiment that cannot be run here, GnnhpcError for a user's model
    that draws random numbers of its own.
    """
    torch.set_num_threads(environment.cpus)
    device, *more = choose_devices(experiment.device, environment, experiment.stages_per_process)
    place = (experiment.process_layout, device, secret_file, more, experiment.loss_stage)
    mesh = join(environment, *place)
    parts = set_up(experiment, mesh, root)
    part = check_slice(experiment, TIMES_FLOPS * FLOPS, steps, whole=True)
    found = self_check(experiment, parts, mesh, environment, root, part, audited=True)
    leave(mesh)
    if found.not_finite:
        raise GnnhpcError(found.not_finite)
    if found.random_layer is not None:
        raise GnnhpcError(
            f"{found.random_layer} gives another output each time, by random numbers that are not "
            "drawn from the context: nothing can be held against it"
        )
    return found.verdict
