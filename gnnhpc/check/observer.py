"""What every rank observes of every run for the audit, outside the measured time."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gnnhpc.batches.batch import Batch, Batches, Loading
from gnnhpc.batches.stopwatch import Timed
from gnnhpc.check.watches.barriers import Barriers
from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.gradient_norms import GradientNormsWatch
from gnnhpc.check.watches.kept_records import KeptRecords
from gnnhpc.check.watches.machine_use import MachineUse
from gnnhpc.check.watches.run_watch import RunWatch
from gnnhpc.check.watches.sample_uses import SampleUses
from gnnhpc.check.watches.second_clock import SecondClock
from gnnhpc.check.watches.shared_step import SharedStep, shared_step
from gnnhpc.check.watches.step_times import StepTimesWatch
from gnnhpc.check.watches.time_faults import TimeFaults
from gnnhpc.core.layout import Layout
from gnnhpc.core.schedule import Action
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import StepOutput
from gnnhpc.engines.channels import carried
from gnnhpc.engines.timing import StepTimes
from gnnhpc.kernels.calls import uncounted
from gnnhpc.records.schema import Phase, StepRecord
from gnnhpc.tasks.task import Tally

LOSS_TOLERANCE = 1e-4
"""Relative difference of two sums of the same float32 losses that rounding cannot explain."""

MOST_ORDERS = 4
"""Of a stage's actions that are kept of a phase: there should be one."""


@dataclass
class RunObserver:
    """Collects observations step by step; takes little time, never inside a measured step."""

    layout: Layout
    loss_stage: int
    """That holds the model's last layers."""
    rank: int
    total_samples: int
    steps_per_epoch: int = 1
    watch: RunWatch | None = None
    """Looks at few steps closely; none where steps are taken for another purpose."""
    drawn: bool = False
    """Whether drawing a mini-batch is part of its step."""
    grad_norm: float | None = None
    gradient_norms: GradientNormsWatch = field(default_factory=GradientNormsWatch)
    mismatched_batches: int = 0
    unequal_gradients: int = 0
    differing_losses: int = 0
    train_steps: int = 0
    step_times: StepTimesWatch = field(default_factory=StepTimesWatch)
    sample_uses: SampleUses = field(init=False)
    second_clock: SecondClock = field(default_factory=SecondClock)
    time_faults: TimeFaults = field(default_factory=TimeFaults)
    barriers: Barriers = field(init=False)
    machine_use: MachineUse = field(default_factory=MachineUse)
    records: KeptRecords = field(default_factory=KeptRecords)
    orders: dict[Phase, set[tuple[Action, ...]]] = field(
        default_factory=lambda: {"train": set(), "test": set()}
    )
    """Of the forwards and backwards of steps."""
    wrong_samples: Faults = field(default_factory=Faults)
    carried_before: Counter[str] = field(default_factory=carried.copy)
    """Tensors between stages before the first step, by way."""
    shared: list[SharedStep] = field(default_factory=list)
    between_steps_cpu_s: list[float] = field(default_factory=list)
    """Processor time of the loop itself before each training step."""
    observing_s: float = 0.0
    _samples: int = 0
    """Of the present step's batch."""
    _loading: Loading | None = None
    """Likewise."""
    _observing_cpu_s: float = 0.0
    _step: int = 0
    """The present training step."""
    _began: float = field(default_factory=time.perf_counter)
    _ended: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.sample_uses = SampleUses(self.total_samples, self.steps_per_epoch)
        self.barriers = Barriers(self.rank, self.time_faults.faults, self.drawn)

    @classmethod
    def of(cls, mesh: Mesh, batches: Batches, watch: RunWatch | None) -> RunObserver:
        samples, steps = batches.total_samples, batches.steps_per_epoch
        return cls(
            mesh.layout, mesh.loss_stage, mesh.rank, samples, steps, watch, drawn=batches.drawn
        )

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Measures the time that observing takes: around all calls of the methods below."""
        began, cpu_before_s = time.perf_counter(), time.thread_time()
        self.second_clock.paused = True
        with uncounted():
            yield
        self.second_clock.paused = False
        self._observing_cpu_s += time.thread_time() - cpu_before_s
        self._ended = time.perf_counter()
        self.observing_s += self._ended - began

    def before_reading(self) -> None:
        self.barriers.begin_step()

    def batch_taken(self, taken: Timed) -> None:
        self.second_clock.taken = taken

    @property
    def looks(self) -> bool:
        """Whether hooks look closely at the present step, which takes some time in it."""
        return self.watch is not None and self.watch.looks

    @property
    def over_budget(self) -> bool:
        """Whether this rank has spent too much on looking closely."""
        return self.watch is not None and self.watch.budget.over

    def agree_on_budget(self, *, over: bool) -> None:
        """Whether any rank has: then none looks closely for a while."""
        if self.watch is not None:
            self.watch.budget.affordable = not over

    def before_training_step(self, step: int, batch: Batch) -> None:
        self._step = step
        self._samples, self._loading = len(batch.sample_ids), batch.loading
        if self.watch is not None:
            self.watch.before_training_step(step, batch)

    def after_training_step(self, step: int, batch: Batch, trained: StepOutput) -> None:
        if self.watch is not None:
            self.watch.after_training_step(step, batch, trained, self.grad_norm)

    def before_evaluation(self, step: int) -> None:
        if self.watch is not None:
            self.watch.before_evaluation(step)

    def after_averaging(self) -> None:
        if self.watch is not None:
            self.watch.after_averaging()

    def before_test_step(self, step: int, batch: Batch) -> None:
        self._samples, self._loading = len(batch.sample_ids), batch.loading
        if self.watch is not None:
            self.watch.before_test_step(step, batch)

    def after_test_step(self, step: int, batch: Batch, outputs: Sequence[Tensor]) -> None:
        if self.watch is not None:
            self.watch.after_test_step(step, batch, outputs)

    def after_evaluation(self) -> None:
        if self.watch is not None:
            self.watch.after_evaluation()

    def observe_tally(
        self, phase: Phase, batch: Batch, outputs: Sequence[Tensor], tally: Tally
    ) -> None:
        if self.watch is not None:
            self.watch.before_report(phase, batch, outputs, tally)

    def before_checkpoint(self, step: int) -> None:
        if self.watch is not None:
            self.watch.before_checkpoint(step)

    @property
    def run_s(self) -> float:
        """From before the first step to the end of the last observation."""
        return self._ended - self._began

    def before_step(self, storage_cpu_s: float) -> None:
        """Before a step is prepared; `storage_cpu_s` went into reading and writing so far."""
        with self.observing():
            self.machine_use.before_step()
        self.second_clock.before_step(storage_cpu_s + self._observing_cpu_s)

    def comes(self) -> None:
        self.barriers.come()

    def leaves(self) -> None:
        self.barriers.leave()
        self.second_clock.barrier_left()

    def step_began(self) -> None:
        self.second_clock.step_began()

    def step_ended(self) -> None:
        self.second_clock.step_ended()

    def length_read(self) -> None:
        self.second_clock.length_read()

    def step_stopped(self) -> None:
        self.second_clock.step_stopped()
        with self.observing():
            self.machine_use.step_stopped()

    def observe_gradients(self, batch: Batch, grad_norm: float | None) -> None:
        """After a training step: counts its samples, and keeps the norm of its gradient."""
        self.grad_norm = grad_norm
        self.train_steps += 1
        self.gradient_norms.add(self._step, grad_norm)
        if len(batch.sample_ids):
            self.sample_uses.count(batch.epoch, batch.sample_ids)

    def compare_ranks(self, checksums: Sequence[float], norms: Sequence[float] | None) -> None:
        """All stages must have loaded the same batch; replicas must hold one gradient.

        Both are by rank; the all-reduce leaves the same bits on every replica, so the norms
        are compared for equality.
        """
        layout = self.layout
        for replica in range(layout.replicas):
            ranks = [layout.rank_of(replica, stage) for stage in range(layout.stages)]
            self.mismatched_batches += int(len({checksums[rank] for rank in ranks}) > 1)
        if norms is not None:
            for stage in range(layout.stages):
                ranks = layout.replica_ranks(stage)
                self.unequal_gradients += int(len({norms[r] for r in ranks}) > 1)

    def barrier_values(self) -> Sequence[float]:
        return self.barriers.values()

    def compare_barriers(self, everyone: Tensor, phase: Phase, step: int) -> None:
        self.barriers.compare(everyone.numpy(), f"{phase} step {step}")

    def compare_losses(self, differentiated: float, reported: float) -> None:
        """The loss whose gradient was taken must be the mean over labelled samples reported."""
        if math.isfinite(reported) and not math.isclose(
            differentiated, reported, rel_tol=LOSS_TOLERANCE, abs_tol=LOSS_TOLERANCE
        ):
            self.differing_losses += 1

    def observe_times(self, record: StepRecord, times: StepTimes) -> None:
        """The record and the times of each step."""
        self.step_times.observe(record, times)
        seen = self.second_clock.seen()
        self.time_faults.compare(record, times, seen)
        self.time_faults.parts.compare_loading(record, self._loading)
        if self.watch is not None and self.looks:
            layers = self.watch.layer_times.seen()
            self.time_faults.parts.compare_layers(record, times, layers)
            if record.phase == "train":
                backwards = self.watch.layer_backwards.seen()
                self.time_faults.parts.compare_layers(record, times, backwards, "backward")
        self.machine_use.observe(record, times)
        self.records.keep(record, times)
        if record.looked != self.looks:
            self.time_faults.faults.add(
                "looked recorded otherwise than it was", f"{record.phase} step {record.step}"
            )
        if record.samples != self._samples:
            self.wrong_samples.add(
                "a number of samples that the batch does not have",
                f"{record.phase} step {record.step}: {record.samples} of {self._samples}",
            )
        if record.phase == "train":
            steps = self.steps_per_epoch
            if record.epoch != record.step // steps:
                detail = f"train step {record.step}: {record.epoch}, of {steps} steps"
                self.wrong_samples.add("an epoch that is not the step's", detail)
            shared = shared_step(record, times, seen.ready_s)
            self.shared += [] if shared is None else [shared]
        orders = self.orders[record.phase]
        if len(orders) < MOST_ORDERS:
            orders.add(seen.order)
        if record.phase == "train" and not record.warmup:
            self.between_steps_cpu_s.append(seen.cpu_between_s)
