"""What every rank observes of every run for the audit, outside the measured time."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import StepRecord

if TYPE_CHECKING:
    from gnnhpc.batches.batch import Batch
    from gnnhpc.engines.timing import StepTimes
    from gnnhpc.ranks.environment import Environment
    from gnnhpc.ranks.mesh import Mesh
    from gnnhpc.train.setup import TrainingParts

LOSS_TOLERANCE = 1e-4
"""Relative difference of two sums of the same float32 losses that rounding cannot explain."""
TIME_TOLERANCE_S = 1e-4
"""Between two readings of a clock, as at a step's begin for its stamp and for its length."""


@dataclass(frozen=True)
class RankObservations:
    """What one rank has observed over its run, small enough to send to rank 0."""

    rank: int
    host: str
    layers: list[str]
    parameters: int
    trained_parameters: int
    """Those that are not frozen."""
    implementation: str
    """Which code computed the layers here: a compiled kernel is not to be had everywhere."""
    threads: int
    threads_wanted: int
    cpus: list[int]
    mismatched_batches: int
    unequal_gradients: int
    differing_losses: int
    """Steps whose reported loss is not the one that was differentiated."""
    repeated_samples: int
    samples: int
    """This replica's, a step."""
    backward_s: float
    overfull_steps: int
    """Steps in which this rank computed for longer than they lasted."""
    overlapping_steps: int
    """Steps that began before the one before them had ended."""
    all_steps_s: float
    """Sum of all steps, warm-up and evaluation included."""
    median_grad_norm: float | None
    reductions: int
    train_steps: int
    step_s: list[float]
    """Of each training step that is no warm-up, barrier to barrier."""
    cpu_share: float | None
    steal_share: float | None
    switches: int
    observing_s: float
    """Spent on observing, outside every measured step."""
    run_s: float
    """From before the first step to the end of the last observation."""


@dataclass
class RunObserver:
    """Collects observations step by step; takes little time, never inside a measured step."""

    layout: Layout
    rank: int
    total_samples: int
    grad_norm: float | None = None
    mismatched_batches: int = 0
    unequal_gradients: int = 0
    differing_losses: int = 0
    overfull_steps: int = 0
    overlapping_steps: int = 0
    _all_steps_s: float = 0.0
    _step_end_s: float = -math.inf
    _uses: dict[int, np.ndarray[Any, np.dtype[np.int16]]] = field(default_factory=dict)
    _norms: list[float] = field(default_factory=list)
    _step_s: list[float] = field(default_factory=list)
    _cpu: float = 0.0
    _busy: float = 0.0
    _steal: float | None = 0.0
    _wall: float = 0.0
    _backward: float = 0.0
    _switches: int = 0
    _steps: int = 0
    _observing_s: float = 0.0
    _began: float = field(default_factory=time.perf_counter)
    _ended: float = field(default_factory=time.perf_counter)

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Measures the time that observing takes: around all calls of the methods below."""
        began = time.perf_counter()
        yield
        self._ended = time.perf_counter()
        self._observing_s += self._ended - began

    def observe_gradients(self, batch: Batch, grad_norm: float | None) -> None:
        """After a training step: counts its samples, and keeps the norm of its gradient."""
        self.grad_norm = grad_norm
        self._steps += 1
        if grad_norm is not None:
            self._norms.append(grad_norm)
        if len(batch.sample_ids):
            counts = self._uses.setdefault(
                batch.epoch, np.zeros(self.total_samples, dtype=np.int16)
            )
            np.add.at(counts, batch.sample_ids, 1)

    def compare_ranks(self, checksums: Sequence[float], norms: Sequence[float] | None) -> None:
        """First and last stage must have loaded the same batch; replicas must hold one gradient.

        Both are by rank; the all-reduce leaves the same bits on every replica, so the norms
        are compared for equality.
        """
        layout = self.layout
        for replica in range(layout.replicas):
            first = layout.rank_of(replica, 0)
            last = layout.rank_of(replica, layout.stages - 1)
            self.mismatched_batches += int(checksums[first] != checksums[last])
        if norms is not None:
            for stage in range(layout.stages):
                ranks = layout.replica_ranks(stage)
                self.unequal_gradients += int(len({norms[r] for r in ranks}) > 1)

    def compare_losses(self, differentiated: float, reported: float) -> None:
        """The loss whose gradient was taken must be the mean over labelled samples reported."""
        if math.isfinite(reported) and not math.isclose(
            differentiated, reported, rel_tol=LOSS_TOLERANCE, abs_tol=LOSS_TOLERANCE
        ):
            self.differing_losses += 1

    def observe_times(self, record: StepRecord, times: StepTimes) -> None:
        """Checks each step's times, and adds up those of steps that are no warm-up."""
        # Not `>`: a time that is no number is wrong too.
        self.overfull_steps += not times.busy_s <= record.wall_s + TIME_TOLERANCE_S
        self.overlapping_steps += not record.start_s >= self._step_end_s - TIME_TOLERANCE_S
        self._step_end_s = record.start_s + record.wall_s
        self._all_steps_s += record.wall_s
        if record.warmup:
            return
        self._switches += times.involuntary_switches
        self._cpu += times.cpu_s
        self._busy += times.busy_s
        self._wall += times.wall_s
        if self._steal is not None:
            self._steal = None if times.steal_s is None else self._steal + times.steal_s
        if record.phase == "train":
            self._step_s.append(times.wall_s)
            self._backward += times.total("backward")

    def sample_counts(self) -> dict[int, np.ndarray[Any, np.dtype[np.int16]]]:
        """Of each epoch, how often this replica was given each sample."""
        return self._uses

    def result(self, **rank_facts: Any) -> RankObservations:
        """All observations; `rank_facts` are the other fields, which the rank itself knows."""
        return RankObservations(
            rank=self.rank,
            mismatched_batches=self.mismatched_batches,
            unequal_gradients=self.unequal_gradients,
            differing_losses=self.differing_losses,
            backward_s=self._backward,
            overfull_steps=self.overfull_steps,
            overlapping_steps=self.overlapping_steps,
            all_steps_s=self._all_steps_s,
            median_grad_norm=statistics.median(self._norms) if self._norms else None,
            train_steps=self._steps,
            step_s=self._step_s,
            cpu_share=self._cpu / self._busy if self._busy else None,
            steal_share=(
                None if self._steal is None or not self._wall else self._steal / self._wall
            ),
            switches=self._switches,
            observing_s=self._observing_s,
            run_s=self._ended - self._began,
            **rank_facts,
        )


def gather_observations(
    mesh: Mesh, parts: TrainingParts, observer: RunObserver, environment: Environment
) -> list[RankObservations]:
    """Every rank's observations, in rank order, on every rank; a collective."""
    import torch

    from gnnhpc.engines.base import parameters_of

    mine = observer.result(
        host=environment.host,
        layers=[layer.name for layer in parts.stage.outlines],
        parameters=sum(p.numel() for p in parts.stage.parameters()),
        trained_parameters=sum(p.numel() for p in parameters_of(parts.stage)),
        implementation=parts.implementation,
        threads=torch.get_num_threads(),
        threads_wanted=environment.cpus,
        cpus=sorted(os.sched_getaffinity(0)),
        samples=parts.batches.samples,
        repeated_samples=_repeated_samples(mesh, observer),
        reductions=parts.engine.gradients.reductions,
    )
    return [RankObservations(**each) for each in mesh.gather_objects(asdict(mine))]


def _repeated_samples(mesh: Mesh, observer: RunObserver) -> int:
    """Samples that were used more than once in an epoch, over all replicas.

    Counted on first stages only: the other stages of a replica have the same samples, which the
    checksums show.
    """
    counts = observer.sample_counts() if mesh.is_first else {}
    epochs = {epoch: np.flatnonzero(seen > 1).size for epoch, seen in counts.items()}
    packed = {epoch: np.packbits(seen > 0).tobytes() for epoch, seen in counts.items()}
    repeated = sum(epochs.values())
    everyone = [found for found in mesh.gather_objects(packed) if found]
    for epoch in {epoch for found in everyone for epoch in found}:
        bits = [
            np.unpackbits(np.frombuffer(found[epoch], dtype=np.uint8))
            for found in everyone
            if epoch in found
        ]
        together = np.sum(np.stack(bits), axis=0)
        repeated += int((together > 1).sum())
    return repeated
