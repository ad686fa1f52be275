"""One rank of `gnnhpc verify`: an engine parity check with more steps and a larger slice."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from gnnhpc.distributed.devices import choose_devices
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import set_up
from gnnhpc.validation.engine_parity import Parity, compare_engine
from gnnhpc.validation.steps.parity_slice import FLOPS, parity_slice
from gnnhpc.validation.steps.step_comparison import TOLERANCE

TIMES_FLOPS = 16.0
"""The work of a verification, in that of the check at the beginning of a run."""
_VERDICTS = {"ok": "PASSED", "invalid": "FAILED", "inconclusive": "INCONCLUSIVE"}


def verify_rank(
    experiment: Experiment,
    environment: Environment,
    root: Path | None,
    steps: int,
) -> Parity | None:
    """Verify as one rank of the layout; rank 0 returns what it found, the others None.

    Raises InputError for an experiment that cannot be run here.
    """
    torch.set_num_threads(environment.cpus)
    device, *more = choose_devices(experiment.device, environment, experiment.stages_per_process)
    layout, loss_stage = experiment.process_layout, experiment.loss_stage
    mesh = join(environment, layout, device, more, loss_stage)
    parts = set_up(experiment, mesh, root)
    part = parity_slice(experiment, steps=steps, flops=TIMES_FLOPS * FLOPS)
    parity = compare_engine(experiment, parts, mesh, root, part)
    leave()
    return parity


def print_parity(experiment: Experiment, parity: Parity) -> None:
    """A line a layer, the largest difference of each kind, the verdict."""
    console = Console()
    table = Table(title=f"{experiment.id} and one process", title_justify="left")
    table.add_column("layer")
    for column in ("outputs", "gradient"):
        table.add_column(f"{column}, relative difference", justify="right")
    for spec in parity.part.layer_specs:
        found = (parity.outputs.get(spec.name), parity.gradients.get(spec.name))
        table.add_row(spec.name, *("" if each is None else f"{each:.1e}" for each in found))
    if parity.outputs:
        console.print(table)
        worst = ", ".join(f"{what} {value:.1e}" for what, value in parity.worst.items())
        console.print(f"largest relative differences: {worst}; tolerance {TOLERANCE:.0e}")
    check = parity.check
    console.print(f"{_VERDICTS[check.verdict]}: {check.detail}", soft_wrap=True, highlight=False)
