"""Gives the stage of a check what a run's own stage holds after its last step."""

from __future__ import annotations

import torch

from gnnhpc.models.set_buffers import all_buffers, set_buffers
from gnnhpc.train.setup import TrainingParts


@torch.no_grad()
def go_on_from(run: TrainingParts, small: TrainingParts) -> None:
    """Copy parameters, buffers and the optimizer's state of the same layers; the run keeps its own.

    Raises KeyError where the run holds other layers than planned.
    """
    held = dict(run.stage.named_parameters())
    for name, parameter in small.stage.named_parameters():
        parameter.copy_(held[name])
    set_buffers(small.stage, all_buffers(run.stage))
    if small.optimizer is None or run.optimizer is None:
        return
    # Not by load_state_dict, which keeps the run's own tensors and imports torch's compiler.
    for group, held_group in zip(
        small.optimizer.param_groups, run.optimizer.param_groups, strict=True
    ):
        group |= {key: value for key, value in held_group.items() if key != "params"}
    held_by = dict(run.stage.named_parameters())
    for name, parameter in small.stage.named_parameters():
        state = run.optimizer.state.get(held_by[name], {})
        small.optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}
