"""Gives the stage of a check what a run's own stage holds after its last step."""

from __future__ import annotations

import copy

import torch

from gnnhpc.train.setup import TrainingParts


@torch.no_grad()
def go_on_from(run: TrainingParts, small: TrainingParts) -> None:
    """Copy parameters, buffers and the optimizer's state of the same layers; the run keeps its own.

    Raises KeyError where the run holds other layers than planned.
    """
    held = dict(run.stage.named_parameters()) | dict(run.stage.named_buffers())
    for name, tensor in [*small.stage.named_parameters(), *small.stage.named_buffers()]:
        tensor.copy_(held[name])
    if small.optimizer is not None and run.optimizer is not None:
        small.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
