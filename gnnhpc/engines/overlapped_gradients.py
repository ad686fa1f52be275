"""One stage's gradients in buckets, each averaged over replicas while earlier layers go backward.

A bucket's layers have all their gradients once the layer before them goes backward for the last
micro-batch. All replicas come to the buckets in one order, as they have one schedule.
DistributedDataParallel does so too (Li et al. 2020, arXiv:2006.15704, section 3.2.3), but not for
pipelines of several parts a stage, nor with layers that add to their gradients themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from gnnhpc.core.buckets import gradient_buckets
from gnnhpc.engines.base import PartPlan, StagePlan, parameters_of
from gnnhpc.engines.flat_gradients import Gradients, flatten, norm_of
from gnnhpc.engines.stage import Stage


def gradients_of(plan: StagePlan, last_microbatches: Sequence[int]) -> SharedGradients:
    """As the plan has them; `last_microbatches` are those that give each part of the stage its last
    gradients in a step.
    """
    if plan.bucket_mib is None or plan.mesh.replicas is None:
        return Gradients(plan.stage, plan.mesh, plan.timer)
    return OverlappedGradients(plan, plan.bucket_mib, last_microbatches)


def buckets_of(stage: Stage, mib: float) -> list[range]:
    """The layers of each bucket of a part of a stage, in the order in which they are reduced."""
    return gradient_buckets([_size(each) for each in _by_layer(stage)], mib * 2**20)


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together."""

    place: int
    """Of the part that has them, among those of its stage."""
    first: int
    """Its first layer, counted within the part."""
    flat: Tensor
    """Each parameter's gradient is a view of it."""


class OverlappedGradients:
    """For an engine that tells which work gives a part its last gradients in a step."""

    def __init__(self, plan: StagePlan, mib: float, last_microbatches: Sequence[int]) -> None:
        self.mesh = plan.mesh
        self.timer = plan.timer
        self.reductions = 0
        self.buckets: list[Bucket] = []
        self._places: dict[str, tuple[int, int]] = {}
        """Of each layer, its part and its number within it."""
        self._ending: int | None = None
        """The part that has its last gradients computed."""
        self._begun: dict[int, Callable[[], None]] = {}
        """By the number of a bucket that is being reduced, what waits for it."""
        for part in plan.parts:
            self._add(part, mib, last_microbatches[part.place])

    def _add(self, part: PartPlan, mib: float, last_microbatch: int) -> None:
        layers, found = _by_layer(part.stage), buckets_of(part.stage, mib)
        for bucket in found:
            flat = flatten([p for layer in bucket for p in layers[layer]])
            self.buckets.append(Bucket(part.place, bucket.start, flat))
        for number, layer in enumerate(part.stage.outlines):
            self._places[layer.name] = part.place, number
        part.stage.on_backward.append(self.goes_backward)
        part.stage.cut_calls(last_microbatch, [bucket.start for bucket in found])

    @property
    def flats(self) -> list[Tensor]:
        return [bucket.flat for bucket in self.buckets]

    @contextlib.contextmanager
    def last_of(self, place: int) -> Iterator[None]:
        """Around what gives a part of the stage its last gradients in a step."""
        self._ending = place
        yield
        self._ending = None
        with self.timer.span("allreduce"):
            self._reduce_after(place, -1)

    def goes_backward(self, layer: str) -> None:
        """Told when a layer's backward begins: those of later layers have ended."""
        place, number = self._places[layer]
        if place == self._ending:
            self._reduce_after(place, number)

    def average(self) -> None:
        """Call once after a step's last backward; every replica then has the mean of all."""
        if not self.buckets:
            return
        with self.timer.span("allreduce"):
            self.timer.arrive()
            for wait in self._begun.values():
                wait()
        self.reductions += len(self._begun)
        self._begun = {}

    def _reduce_after(self, place: int, layer: int) -> None:
        """Begin with the buckets of a part's layers after this one, where that is not done yet."""
        for number, bucket in enumerate(self.buckets):
            if bucket.place == place and bucket.first > layer and number not in self._begun:
                bucket.flat.div_(self.mesh.layout.replicas)
                self._begun[number] = self.mesh.begin_sum_over_replicas(bucket.flat)

    def norm(self) -> float | None:
        return norm_of(self.flats)


SharedGradients = Gradients | OverlappedGradients


def _by_layer(stage: Stage) -> list[list[Tensor]]:
    """Each layer's parameters that train; one that two layers have is complete with the first."""
    known: set[Tensor] = set()
    found: list[list[Tensor]] = []
    for layer in stage.layers:
        mine: list[Tensor] = [p for p in parameters_of(layer) if p not in known]
        known.update(mine)
        found.append(mine)
    return found


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
