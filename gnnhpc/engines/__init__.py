"""Engines, which run a step on the stages: sequential, native, torch.distributed.pipelining,
torchgpipe.

Also the stage itself, transfers, gradients and timing. Imports tasks, batches and below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.core.errors import InputError
from gnnhpc.engines.cuda_graph import StageGraphs
from gnnhpc.engines.engine import StagePlan, StepOutput
from gnnhpc.engines.gradient_sync import FlatGradients


class Engine(Protocol):
    """Runs steps. Only the first stage uses inputs, and only the last uses targets."""

    @property
    def graphs(self) -> StageGraphs | None:
        """What replays its steps; None where they are computed."""

    @property
    def gradients(self) -> FlatGradients:
        """The gradients of the stage that it trains."""

    def train_step(self, batch: Batch) -> StepOutput:
        """Forward and backward, from gradients of zero; after it they are complete and averaged
        over replicas, and layers have ended their mini-batch (`Stage.end_minibatch`)."""

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        """Forward only, in evaluation mode, without changing anything that training uses."""


def build_engine(name: str, plan: StagePlan) -> Engine:
    """The sequential engine for a single stage, else the engine called `name`.

    Raises InputError for torch's engine where tensors of a GPU travel through the host's memory.
    """
    if name == "torchgpipe" and len(plan.cut) > 1:
        from gnnhpc.engines.libraries.torchgpipe import TorchgpipeEngine

        return TorchgpipeEngine(plan)
    if plan.mesh.layout.stages == 1:
        from gnnhpc.engines.sequential import SequentialEngine

        return SequentialEngine(plan)
    if name == "native":
        from gnnhpc.engines.native import NativeEngine

        return NativeEngine(plan)
    if plan.mesh.staged:
        raise InputError(
            "environment",
            f"engine {name}",
            "ranks whose GPUs cannot talk by NCCL",
            "engine native, or NCCL and a GPU for each rank",
        )
    from gnnhpc.engines.libraries.torch_pipelining import PipeliningEngine

    return PipeliningEngine(plan)
