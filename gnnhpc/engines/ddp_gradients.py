"""Replicas of a stage under torch.distributed.pipelining: DDP, with its all-reduce timed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gnnhpc.core.errors import InputError
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import parameters_of
from gnnhpc.engines.step_timer import StepTimer

_SPARSE = "sparse gradients", "sparse=False"
_REFUSED = (
    ("storage of SparseTensorImpl", *_SPARSE),
    ("Expected to have finished reduction", "some that no gradient reaches", "all in the loss"),
)
"""What torch says, what that means, and what DDP allows."""
_ONE_BUCKET_MIB = 1024
"""Large enough for all gradients of a stage, so that there is one all-reduce."""


class DdpReplicas:
    """Wraps a stage in DDP if there are replicas and the stage has parameters.

    Raises InputError for replicas of a layer whose gradients are sparse; so does `taking_a_step`,
    and for one whose parameters have none.
    """

    def __init__(self, stage: nn.Module, mesh: Mesh, timer: StepTimer) -> None:
        self.timer = timer
        self.mesh = mesh
        self.reductions = 0
        self.module: nn.Module = stage
        self._parameters = parameters_of(stage)
        if mesh.replicas is not None and self._parameters:
            _refuse_sparse(stage)
            self.module = DistributedDataParallel(
                stage,
                process_group=mesh.replicas,
                # No device_ids: with them DDP moves every tensor argument to the GPU, and the
                # number of the micro-batch, read there, would stop the host at each forward.
                forward_sync_buffers=False,
                gradient_as_bucket_view=True,
                bucket_cap_mb=_ONE_BUCKET_MIB,
            )
            # DDP checks a hook's annotations at run time; a lambda has none.
            self.module.register_comm_hook(None, lambda _, bucket: self.reduce(bucket))
        else:
            for p in self._parameters:
                # Else the first gradient's form stays, and optimizers here take no sparse one.
                p.grad = torch.zeros_like(p)

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average one bucket of gradients over the replicas."""
        self.reductions += 1
        self.timer.gradients_ready()
        assert self.mesh.replicas is not None
        return allreduce_hook(self.mesh.replicas, bucket)

    def zero(self) -> None:
        for p in self._parameters:
            if p.grad is not None:
                p.grad.zero_()

    def norm(self) -> float | None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norms = [float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in gradients]
        return math.hypot(*norms) if norms else None


@contextlib.contextmanager
def taking_a_step() -> Iterator[None]:
    """Say in our words what DDP refuses of a model within a step."""
    try:
        yield
    except RuntimeError as error:
        # The schedule's own error may be from DDP's.
        said = f"{error} {error.__cause__}"
        for of_torchs, found, allowed in _REFUSED:
            if of_torchs in said:
                raise _refused("parameters", found, allowed) from error
        raise


def _refuse_sparse(stage: nn.Module) -> None:
    """DDP gives them buckets of their own, which stay sparse."""
    for name, module in stage.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise _refused(name, *_SPARSE)


def _refused(key: str, found: str, allowed: str) -> InputError:
    where = "in replicas of engine pipelining"
    return InputError("model", key, f"{found} {where}", f"{allowed}, or engine native")
