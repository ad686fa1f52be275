"""A second clock beside each step: what it saw of the step, by hooks that the engine knows not of.

It is another clock of the kernel's than the records' (CLOCK_MONOTONIC_RAW, which nothing adjusts),
read at places that nest: before the timer is started and after, before it reads the step's length
and after; where the stage begins and ends a forward; where gradients reach its output and its first
layer; after the optimizer. So a bound holds however busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from gnnhpc.batches.stopwatch import Timed
from gnnhpc.check.watches.recomputed_forwards import Place, RecomputedForwards
from gnnhpc.check.watches.sum_moments import SeenSums, SumMoments
from gnnhpc.check.watches.system_counts import CountedStep, SystemCounts
from gnnhpc.check.watches.work_moments import Moment, WorkMoments
from gnnhpc.core.schedule import Action, Kind
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.tasks.task import Loss

SUM_S: Final = 1e-6
"""Of the same seconds rounded and added up otherwise, and of readings that nest."""
RATE: Final = 1e-3
"""Of two clocks of a machine: the kernel adjusts the records' by at most 500 ppm (adjtimex(2))."""


def seconds() -> float:
    """Of a clock that counts from the machine's start and is never adjusted."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@dataclass
class SeenStep:
    """One step by the second clock."""

    at_least_s: float
    """From just after the timer was started to just before it was stopped."""
    at_most_s: float
    """From just before it was started, after the first barrier, to just after it has read the
    step's length."""
    not_before_s: float
    """When it began at the earliest, since the machine's start; `began_s` is at the latest."""
    began_s: float
    order: tuple[Action, ...] = ()
    """The forwards of the stage, or of such parts of it, the backwards, and gradients of weights
    apart from them, as they began."""
    begins: Mapping[tuple[Kind, Place], Moment] = field(default_factory=dict)
    """When each of them began."""
    ends: Mapping[tuple[Kind, Place], Moment] = field(default_factory=dict)
    """And when all that it computes was there."""
    loss_begins: Mapping[Place, Moment] = field(default_factory=dict)
    """When the loss's own backward began, of a part that has the loss."""
    forwards: int = 0
    forward_s: float = 0.0
    """Within the stage alone, without the loss."""
    backwards: int = 0
    backward_s: float = 0.0
    """From the gradient of the stage's output to that of its first trained layer; where weights
    are apart to the last one that its first layer, or its input, has without them."""
    weights_s: float = 0.0
    """Gradients of weights apart from a backward."""
    outside: dict[str, int] = field(default_factory=dict)
    """What was done between the step before and this one: its name, how often."""
    cpu_between_s: float = 0.0
    """Processor time of the engine's thread in the loop between the step before and this one."""
    taken: Timed | None = None
    """Taking its batch, before it; None where nobody tells."""
    ready_s: float | None = None
    """When the gradients of its first trained layer were complete, since the first barrier."""
    optimizer_steps: int = 0
    optimizer_s: float = 0.0
    """Within the optimizer's step alone."""
    zeroed_s: float = 0.0
    """Within setting gradients to zero."""
    sums: SeenSums | None = None
    """Over the stage's replicas; None where nothing tells of them."""
    counted: CountedStep | None = None
    """What the system counted of it; None where that was not read."""
    barriers: tuple[int, int] | None = None
    """How often this rank met the others between taking the batch and the step's beginning, and
    from there to its end; None where nothing counts it."""
    recomputed: list[Place] | None = None
    """Forwards of the stage's parts that were computed again in backward, sorted; None without
    hooks."""
    recompute_s: float = 0.0
    """From their first layer's beginning to their last layer's end."""


@dataclass
class SecondClock:
    """Told of each step's barriers by the loop, and of its work by hooks."""

    paused: bool = False
    """While something is computed to check another thing, and is no work of the loop."""
    taken: Timed | None = None
    """The next step's batch, by the loop."""
    _counts: dict[str, int] = field(default_factory=dict)
    _outside: dict[str, int] = field(default_factory=dict)
    _forward_s: float = 0.0
    _backward_s: float = 0.0
    _forward_from: float | None = None
    _moments: WorkMoments = field(default_factory=WorkMoments)
    _backward_from: float | None = None
    _before: float = 0.0
    _began: float = 0.0
    _ended: float = 0.0
    _read_at: float | None = None
    """When the timer had read the step's length."""
    _ready: float | None = None
    _optimizer_from: float = 0.0
    _optimizer_s: float = 0.0
    _zeroed_s: float = 0.0
    _system: SystemCounts = field(default_factory=SystemCounts)
    _sums: SumMoments = field(default_factory=SumMoments)
    _sums_told: bool = False
    _met: Sequence[int] = ()
    """Counts this rank's barriers."""
    _met_at: list[int] = field(default_factory=list)
    _in_step: bool = False
    _recomputed: RecomputedForwards = field(default_factory=RecomputedForwards)
    _hooked: bool = False
    _accounted_cpu: float = 0.0
    _cpu_between: float = 0.0
    _cpu_ended: float | None = None
    """None before the first step: what is done then belongs to none."""

    def attach(
        self,
        stage: Stage,
        optimizer: torch.optim.Optimizer | None,
        mesh: Mesh | None = None,
        loss: Loss | None = None,
    ) -> None:
        """Hook a stage, its loss and what trains it; a hook takes about two microseconds.

        `mesh` counts barriers, and tells of sums over replicas.
        """
        if mesh is not None:
            self._met, self._sums_told = mesh.met, True
            mesh.on_sum.append(self._sums.told)
        self._hooked = True
        self._recomputed.attach(stage)
        self._moments.attach(stage, loss)
        self._moments.on_backward = self._backward_begins
        for called in stage.called:
            for part in called.parts:
                last = part is called.parts[-1]
                part.register_forward_pre_hook(self._part_begins)
                part.register_forward_hook(self._forward_ends if last else self._part_ends)
            trained = next((p for p in called.parameters() if p.requires_grad), None)
            if trained is not None:
                trained.register_post_accumulate_grad_hook(self._backward_ends)
        if optimizer is not None:
            optimizer.register_step_pre_hook(self._optimizer_begins)
            optimizer.register_step_post_hook(self._optimizer_stepped)
            # No hook of torch's is around it.
            optimizer.zero_grad = partial(self._zero, optimizer.zero_grad)  # type: ignore[method-assign]

    def before_step(self, accounted_cpu_s: float) -> None:
        """Before the timer is made ready and the first barrier.

        `accounted_cpu_s` is processor time since the start that is not the loop's own: of reading
        and writing files, and of observing.
        """
        self._before, self._read_at = seconds(), None
        cpu = time.thread_time() - accounted_cpu_s
        if self._cpu_ended is not None:
            self._cpu_between = cpu - self._cpu_ended
        self._accounted_cpu = accounted_cpu_s
        self._counts, self._forward_s, self._backward_s = {}, 0.0, 0.0
        self._ready, self._optimizer_s, self._zeroed_s = None, 0.0, 0.0
        self._recomputed.begin_step()
        self._system.before_step()
        self._met_at = [*self._met]

    def barrier_left(self) -> None:
        """After each barrier, the first one just before the timer is started."""
        if not self._in_step:
            self._before = seconds()

    def step_began(self) -> None:
        """After the timer was started."""
        self._in_step = True
        self._met_at += self._met
        self._began = seconds()
        self._moments.begin_step(self._began)
        self._sums.begin_step(self._began)
        self._system.step_began()

    def step_ended(self) -> None:
        """Before the timer is stopped."""
        self._system.step_ended()
        self._moments.end_step()
        self._sums.end_step()
        self._met_at += self._met
        self._in_step = False
        self._cpu_ended = time.thread_time() - self._accounted_cpu
        self._ended = seconds()

    def length_read(self) -> None:
        """Just after the timer has read the step's length."""
        self._read_at = seconds()

    def step_stopped(self) -> None:
        """After the timer was stopped."""
        if self._read_at is None:
            self._read_at = seconds()
        self._system.step_stopped()

    def seen(self) -> SeenStep:
        """The step that was stopped last."""
        outside, self._outside = self._outside, {}
        self._moments.read()
        return SeenStep(
            at_least_s=self._ended - self._began,
            at_most_s=(self._read_at or self._ended) - self._before,
            not_before_s=self._before,
            began_s=self._began,
            order=tuple(self._moments.order),
            begins=self._moments.begins,
            ends=self._moments.ends,
            loss_begins=self._moments.loss_begins,
            forwards=self._counts.get("forward", 0),
            forward_s=self._forward_s,
            backwards=self._counts.get("backward", 0),
            backward_s=self._seconds_back(),
            weights_s=self._moments.seconds_of("weights"),
            outside=outside,
            cpu_between_s=self._cpu_between,
            taken=self.taken,
            ready_s=None if self._ready is None else self._ready - self._began,
            optimizer_steps=self._counts.get("optimizer step", 0),
            optimizer_s=self._optimizer_s,
            zeroed_s=self._zeroed_s,
            sums=self._sums.seen() if self._sums_told else None,
            counted=self._system.seen(),
            barriers=self._barriers(),
            recomputed=sorted(self._recomputed.places) if self._hooked else None,
            recompute_s=self._recomputed.seconds,
        )

    def _seconds_back(self) -> float:
        """The parameter that ends a backward may be a weight, which has its gradient later."""
        apart = any(action.kind == "weights" for action in self._moments.order)
        return self._moments.seconds_of("backward") if apart else self._backward_s

    def _note(self, what: str) -> None:
        if self._in_step:
            self._counts[what] = self._counts.get(what, 0) + 1
        elif self._cpu_ended is not None and not self.paused:
            self._outside[what] = self._outside.get(what, 0) + 1

    def _part_begins(self, *_: Any) -> None:
        if not is_recomputing():
            self._forward_from = seconds()

    def _barriers(self) -> tuple[int, int] | None:
        if len(self._met_at) < 3:
            return None
        before, began, ended = self._met_at
        return began - before, ended - began

    def _part_ends(self, *_: Any) -> None:
        if self._in_step and self._forward_from is not None and not is_recomputing():
            self._forward_s += seconds() - self._forward_from

    def _forward_ends(self, *_: Any) -> None:
        self._part_ends()
        if not is_recomputing():
            self._note("forward")

    def _backward_begins(self) -> None:
        self._note("backward")
        self._backward_from = seconds()

    def _backward_ends(self, _parameter: Tensor) -> None:
        now = seconds()
        if self._in_step:
            self._ready = now
        if self._in_step and self._backward_from is not None and not self._moments.of_weights:
            self._backward_s += now - self._backward_from
            self._backward_from = None

    def _zero(self, zero_grad: Callable[..., None], *given: Any, **named: Any) -> None:
        began = seconds()
        zero_grad(*given, **named)
        if self._in_step:
            self._zeroed_s += seconds() - began

    def _optimizer_begins(self, *_: Any) -> None:
        self._optimizer_from = seconds()

    def _optimizer_stepped(self, *_: Any) -> None:
        if self._in_step:
            self._optimizer_s += seconds() - self._optimizer_from
        self._note("optimizer step")
