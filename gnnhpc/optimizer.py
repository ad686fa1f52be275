"""The optimizer of one rank's stage."""

from __future__ import annotations

import torch

from gnnhpc.models.stage import Stage
from gnnhpc.spec import Experiment


def build_optimizer(experiment: Experiment, stage: Stage) -> torch.optim.Optimizer | None:
    """None for a stage that has nothing to learn (a cut may leave one only dropout)."""
    parameters = list(stage.parameters())
    if not parameters:
        return None
    options = experiment.optimizer
    if options.name == "sgd":
        return torch.optim.SGD(parameters, lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.Adam(
        parameters, lr=options.lr, weight_decay=options.weight_decay, fused=True
    )
