"""How many layers each stage gets by torchgpipe's own measurements of time or of a GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torchgpipe.balance import balance_by_size, balance_by_time

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.engine import parameters_of
from gnnhpc.engines.stage import build_stage
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.engines.torchgpipe_partition import Partition, PresentStep
from gnnhpc.experiment.experiment import Experiment

COPIES = {"adam": 4.0, "sgd": 2.0}
"""Of a parameter, its gradient and what the optimizer keeps, as torchgpipe counts them."""


class _Shared(PresentStep):
    """torchgpipe measures deep copies of the layers, which need not each have the graph."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Shared:
        return self


def measured_balance(
    experiment: Experiment,
    specs: Sequence[LayerSpec],
    example: MicroBatch,
    device: torch.device,
) -> list[int]:
    """Layers a stage, of layers built for this only, each called with one micro-batch.

    Raises InputError for a model that has nothing to train, whose backward takes no time, and for
    more stages than torchgpipe can fill.
    """
    stages, balance = experiment.layout.stages, experiment.balance
    with torch.random.fork_rng(devices=[]):
        layers = _layers(experiment, specs, example, device)
        if not parameters_of(layers):
            allowed = "counts, for a model without parameters"
            raise InputError("spec", "balance", repr(balance), allowed)
        number = torch.zeros(1, device=device).requires_grad_()
        if balance == "time":
            return balance_by_time(stages, layers, number, device=device)
        # It takes a sample for a mini-batch of as many rows, and measures one of them: here each
        # row is a micro-batch.
        copies = COPIES[experiment.optimizer.name]
        return balance_by_size(stages, layers, number, param_scale=copies, device=device)


def _layers(
    experiment: Experiment,
    specs: Sequence[LayerSpec],
    example: MicroBatch,
    device: torch.device,
) -> nn.Sequential:
    timer = StepTimer(device)
    # Layers are timed one by one, by torchgpipe: nothing of ours may take time beside them.
    present = _Shared(timer, several_devices=True)
    no_samples = np.zeros(0, dtype=np.int64)
    present.batch = Batch((example,), 1, 0, 0, no_samples, 0)
    partitions = []
    for index in range(len(specs)):
        stage = build_stage(experiment, specs, [range(index, index + 1)], timer).to(device)
        partitions.append(Partition(stage, device, present, is_last=index == len(specs) - 1))
    return nn.Sequential(*partitions)
