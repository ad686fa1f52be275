"""One stage's gradients in flat buffers, averaged over replicas.

DistributedDataParallel does the same (Li et al. 2020, arXiv:2006.15704, section 3.2), but not for
several virtual stages of a rank, nor with layers that add to their gradients themselves, and it
imports torch's compiler at every start.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StagePlan, parameters_of
from gnnhpc.engines.stage import Stage


def gradients_of(plan: StagePlan, last_microbatches: Sequence[int]) -> FlatGradients:
    """Gradients as the plan reduces them.

    `last_microbatches` are those that give each virtual stage of the rank its last gradients.
    """
    mib = plan.experiment.bucket_mib
    if mib is None or plan.mesh.replicas is None:
        return FlatGradients(plan)
    return BucketedGradients(plan, mib, last_microbatches)


class FlatGradients:
    """All gradients of a device in one buffer, which one all-reduce a step averages."""

    def __init__(self, plan: StagePlan) -> None:
        self.mesh = plan.mesh
        self.timer = plan.timer
        self.reductions = 0
        """All-reduces since the start."""
        parameters = parameters_of(plan.stage)
        devices = dict.fromkeys(p.device for p in parameters)
        self.flats = [flatten([p for p in parameters if p.device == each]) for each in devices]
        """Tensors that hold all gradients."""

    def last_of(self, place: int) -> AbstractContextManager[None]:
        """Around what gives a virtual stage of the rank its last gradients in a step."""
        return contextlib.nullcontext()

    def average(self) -> None:
        """Call once after a step's last backward; every replica then has the mean of all."""
        if not self.flats or self.mesh.replicas is None:
            return
        for flat in self.flats:
            flat.div_(self.mesh.layout.replicas)
        self.timer.begin_allreduce()
        self._sum_over_replicas()
        self.timer.end()
        self.reductions += 1

    def _sum_over_replicas(self) -> None:
        """Sum those of several devices at once: NCCL has one communicator a process and GPU."""
        if len(self.flats) == 1:
            self.mesh.sum_over_replicas(self.flats[0])
            return
        together = torch.cat([flat.to(self.mesh.device) for flat in self.flats])
        self.mesh.sum_over_replicas(together)
        sizes = [len(flat) for flat in self.flats]
        for flat, piece in zip(self.flats, together.split(sizes), strict=True):
            flat.copy_(piece)

    def zero(self) -> None:
        """Set all gradients to zero before a step."""
        with self.timer.span("optimizer"):
            for flat in self.flats:
                flat.zero_()

    def norm(self) -> float | None:
        """The norm of the whole gradient; None for a stage without parameters.

        It is summed in double precision, as in single a million squares are off by 1e-4.
        """
        norms = [torch.linalg.vector_norm(f, dtype=torch.float64) for f in self.flats]
        # The watchdog recognizes this wait for a GPU, and not that of a conversion.
        self.timer.synchronize()
        return math.hypot(*map(float, norms)) if norms else None


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together."""

    place: int
    """Number of its virtual stage among those of the rank."""
    first: int
    """Its first layer, counted within the virtual stage."""
    flat: Tensor
    """Each parameter's gradient is a view of it."""


class BucketedGradients(FlatGradients):
    """Gradients in buckets, each averaged while earlier layers go backward.

    A bucket's layers have all their gradients once the gradient of the output of the layer before
    them arrives, in the last micro-batch. All replicas come to the buckets in one order, as they
    have one schedule.
    """

    def __init__(self, plan: StagePlan, mib: float, last_microbatches: Sequence[int]) -> None:
        super().__init__(plan)
        self.buckets: list[Bucket] = []
        self._ending: int | None = None
        """The virtual stage whose last gradients are being computed."""
        self._begun: dict[int, Callable[[], None]] = {}
        """Number of a bucket that is being reduced -> the function that waits for it."""
        for part in plan.virtual_stages:
            layers = _by_layer(part.stage)
            sizes = [sum(p.numel() * p.element_size() for p in each) for each in layers]
            hooks: dict[int, Callable[[], None]] = {}
            for bucket in gradient_buckets(sizes, mib * 2**20):
                flat = flatten([p for layer in bucket for p in layers[layer]])
                self.buckets.append(Bucket(part.place, bucket.start, flat))
                before = bucket.start - 1
                hooks[before] = partial(self._gradient_arrived, part.place, before)
            part.stage.on_gradient = hooks
            part.stage.hooked_microbatch = last_microbatches[part.place]
        self.flats = [bucket.flat for bucket in self.buckets]

    def _gradient_arrived(self, place: int, layer: int) -> None:
        """The gradient of a layer's output is there, in the micro-batch whose hooks are called."""
        if self._ending == place:
            self._reduce_after(place, layer)

    @contextlib.contextmanager
    def last_of(self, place: int) -> Iterator[None]:
        self._ending = place
        yield
        self._ending = None
        self._reduce_after(place, -1)

    def average(self) -> None:
        if not self.buckets:
            return
        self.timer.begin_allreduce()
        for wait in self._begun.values():
            wait()
        self.timer.end()
        self.reductions += len(self._begun)
        self._begun = {}

    def _reduce_after(self, place: int, layer: int) -> None:
        """Begin with the buckets of the layers after this one that have not begun yet."""
        for number, bucket in enumerate(self.buckets):
            if bucket.place == place and bucket.first > layer and number not in self._begun:
                bucket.flat.div_(self.mesh.layout.replicas)
                self._begun[number] = self.mesh.begin_sum_over_replicas(bucket.flat)


def clip_gradients(gradients: FlatGradients, mesh: Mesh, clip_norm: float) -> None:
    """Scale gradients, averaged over replicas, so that their norm over all stages is no larger.

    A collective of the stages of a replica.
    """
    if mesh.pipeline is None and len(gradients.flats) == 1:
        # By the device alone: the host need not wait for the gradients.
        flat = gradients.flats[0]
        found = torch.linalg.vector_norm(flat, dtype=torch.float64)
        flat.mul_(torch.where(found > clip_norm, clip_norm / found, 1.0))
        return
    norm = gradients.norm() or 0.0
    if mesh.pipeline is not None:
        squares = torch.tensor(norm * norm, dtype=torch.float64)
        dist.all_reduce(squares, group=mesh.pipeline)
        norm = math.sqrt(float(squares))
    if norm > clip_norm:
        for flat in gradients.flats:
            flat.mul_(clip_norm / norm)


def gradient_buckets(sizes: Sequence[int], least: float) -> list[range]:
    """Neighbouring layers with at least `least` bytes of gradients, the last layers first, as that
    is the order in which gradients are there (Li et al. 2020, arXiv:2006.15704, section 3.2.3).

    `sizes` are the layers' own, in bytes. The last bucket, of the first layers, has what is left;
    first layers without any are in none.
    """
    buckets, stop, held = [], len(sizes), 0
    for layer in reversed(range(len(sizes))):
        held += sizes[layer]
        if held and (held >= least or not any(sizes[:layer])):
            buckets.append(range(layer, stop))
            stop, held = layer, 0
    return buckets


def flatten(parameters: Sequence[Tensor]) -> Tensor:
    """A buffer of zeros, of which each parameter's gradient is a view from now on.

    A gradient has its parameter's strides where that is dense: torch's fused Adam goes through the
    memory of both in one order, whatever their strides are (2.13).
    """
    sizes = [p.numel() for p in parameters]
    flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
    for p, piece in zip(parameters, flat.split(sizes), strict=True):
        p.grad = piece.as_strided(p.shape, dense_strides(p), piece.storage_offset())
    return flat


def dense_strides(x: Tensor) -> tuple[int, ...]:
    """The strides of x where its elements fill their memory and no two share a place."""
    return torch.empty_like(x, device="meta").stride()


def _by_layer(stage: Stage) -> list[list[Tensor]]:
    """Each layer's parameters that train; one that two layers have is complete with the first."""
    known: set[Tensor] = set()
    layers: list[list[Tensor]] = []
    for layer in stage.layers:
        mine: list[Tensor] = [p for p in parameters_of(layer) if p not in known]
        known.update(mine)
        layers.append(mine)
    return layers
