"""Who runs the stages.

Sequential, native, torch.distributed.pipelining; transfers, gradients, timing. Imports batches,
tasks, models, ranks and below.
"""

from __future__ import annotations

from gnnhpc.engines.base import Engine, Plan

__all__ = ["Engine", "Plan", "build_engine"]


def build_engine(name: str, plan: Plan) -> Engine:
    """One stage always runs in its own process; several are run by the engine called `name`."""
    if plan.mesh.layout.stages == 1:
        from gnnhpc.engines.sequential import SequentialEngine

        return SequentialEngine(plan)
    if name == "native":
        from gnnhpc.engines.native import NativeEngine

        return NativeEngine(plan)
    from gnnhpc.engines.pipelining import PipeliningEngine

    return PipeliningEngine(plan)
