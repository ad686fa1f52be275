"""Engines, which run a step on the stages: sequential, native, torch.distributed.pipelining.

Also the stage itself, transfers, gradients and timing. Imports tasks, batches and below.
"""

from __future__ import annotations

from gnnhpc.engines.base import Engine, StagePlan

__all__ = ["Engine", "StagePlan", "build_engine"]


def build_engine(name: str, plan: StagePlan) -> Engine:
    """The sequential engine for a single stage, else the engine called `name`."""
    if plan.mesh.layout.stages == 1:
        from gnnhpc.engines.sequential import SequentialEngine

        return SequentialEngine(plan)
    if name == "native":
        from gnnhpc.engines.native import NativeEngine

        return NativeEngine(plan)
    from gnnhpc.engines.torch_pipelining import PipeliningEngine

    return PipeliningEngine(plan)
