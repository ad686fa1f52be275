"""What every rank looks at while its run goes on, always, and outside the timed region."""

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
    from gnnhpc.train.setup import Parts

LOSS_TOLERANCE = 1e-4
"""Relative difference of two sums of the same float32 losses that rounding cannot explain."""


@dataclass(frozen=True)
class Findings:
    """One rank's observations, small enough to send to rank 0."""

    rank: int
    host: str
    layers: list[str]
    parameters: int
    threads: int
    threads_wanted: int
    cpus: list[int]
    mismatched_batches: int
    unequal_gradients: int
    other_losses: int
    repeated_samples: int
    samples: int
    """This replica's, a step."""
    backward_s: float
    median_grad_norm: float | None
    reductions: int
    train_steps: int
    walls: list[float]
    cpu_share: float | None
    steal_share: float | None
    switches: int
    looked_s: float
    """Spent on all this, outside every timed step."""
    lasted_s: float
    """From before the first step to the end of the last look."""


@dataclass
class Observations:
    """Collects as the steps go by; cheap, and never inside the timed region."""

    layout: Layout
    rank: int
    total_samples: int
    grad_norm: float | None = None
    mismatched_batches: int = 0
    unequal_gradients: int = 0
    other_losses: int = 0
    _seen: dict[int, np.ndarray[Any, np.dtype[np.int16]]] = field(default_factory=dict)
    _norms: list[float] = field(default_factory=list)
    _walls: list[float] = field(default_factory=list)
    _cpu: float = 0.0
    _busy: float = 0.0
    _steal: float | None = 0.0
    _wall: float = 0.0
    _backward: float = 0.0
    _switches: int = 0
    _steps: int = 0
    _looked: float = 0.0
    _began: float = field(default_factory=time.perf_counter)
    _ended: float = field(default_factory=time.perf_counter)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Around whatever is done to observe a step and not to take it."""
        began = time.perf_counter()
        yield
        self._ended = time.perf_counter()
        self._looked += self._ended - began

    def saw(self, batch: Batch, grad_norm: float | None) -> None:
        """After a training step: which samples it was, and how long its gradient is."""
        self.grad_norm = grad_norm
        self._steps += 1
        if grad_norm is not None:
            self._norms.append(grad_norm)
        if len(batch.sample_ids):
            counts = self._seen.setdefault(
                batch.epoch, np.zeros(self.total_samples, dtype=np.int16)
            )
            np.add.at(counts, batch.sample_ids, 1)

    def compare(self, checksums: Sequence[float], norms: Sequence[float] | None) -> None:
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

    def trained(self, differentiated: float, reported: float) -> None:
        """The loss whose gradient was taken must be the mean over labelled samples reported."""
        if math.isfinite(reported) and not math.isclose(
            differentiated, reported, rel_tol=LOSS_TOLERANCE, abs_tol=LOSS_TOLERANCE
        ):
            self.other_losses += 1

    def timed(self, record: StepRecord, times: StepTimes) -> None:
        if record.warmup:
            return
        self._switches += times.involuntary_switches
        self._cpu += times.cpu_s
        self._busy += times.busy_s
        self._wall += times.wall_s
        if self._steal is not None:
            self._steal = None if times.steal_s is None else self._steal + times.steal_s
        if record.phase == "train":
            self._walls.append(times.wall_s)
            self._backward += times.total("backward")

    def seen_counts(self) -> dict[int, np.ndarray[Any, np.dtype[np.int16]]]:
        """Of each epoch, how often this replica was given each sample."""
        return self._seen

    def findings(self, **known: Any) -> Findings:
        """These observations with what only the rank itself knows."""
        return Findings(
            rank=self.rank,
            mismatched_batches=self.mismatched_batches,
            unequal_gradients=self.unequal_gradients,
            other_losses=self.other_losses,
            backward_s=self._backward,
            median_grad_norm=statistics.median(self._norms) if self._norms else None,
            train_steps=self._steps,
            walls=self._walls,
            cpu_share=self._cpu / self._busy if self._busy else None,
            steal_share=(
                None if self._steal is None or not self._wall else self._steal / self._wall
            ),
            switches=self._switches,
            looked_s=self._looked,
            lasted_s=self._ended - self._began,
            **known,
        )


def gather_findings(
    mesh: Mesh, parts: Parts, observations: Observations, environment: Environment
) -> list[Findings]:
    """Every rank's findings, in rank order, on every rank; a collective."""
    import torch

    mine = observations.findings(
        host=environment.host,
        layers=[layer.name for layer in parts.stage.outlines],
        parameters=sum(p.numel() for p in parts.stage.parameters()),
        threads=torch.get_num_threads(),
        threads_wanted=environment.cpus,
        cpus=sorted(os.sched_getaffinity(0)),
        samples=parts.batches.samples,
        repeated_samples=_repeated(mesh, observations),
        reductions=parts.engine.gradients.reductions,
    )
    return [Findings(**found) for found in mesh.share(asdict(mine))]


def _repeated(mesh: Mesh, observations: Observations) -> int:
    """Samples that one epoch gave out more than once, over all replicas.

    First stages only are counted: the other stages of a replica are given the same samples, which
    the checksums hold.
    """
    counts = observations.seen_counts() if mesh.is_first else {}
    epochs = {epoch: np.flatnonzero(seen > 1).size for epoch, seen in counts.items()}
    packed = {epoch: np.packbits(seen > 0).tobytes() for epoch, seen in counts.items()}
    repeated = sum(epochs.values())
    everyone = [found for found in mesh.share(packed) if found]
    for epoch in {epoch for found in everyone for epoch in found}:
        bits = [
            np.unpackbits(np.frombuffer(found[epoch], dtype=np.uint8))
            for found in everyone
            if epoch in found
        ]
        together = np.sum(np.stack(bits), axis=0)
        repeated += int((together > 1).sum())
    return repeated
