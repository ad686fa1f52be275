"""The actions of a rank as CUDA graphs: each forward and each backward of a micro-batch.

Transfers lie between the actions of a pipeline and are launched as always, so its step cannot be
one graph; that of a single stage is one action. The graphs share their memory, as they are replayed
in the order in which they were captured, which is the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.core.schedules import Action
from gnnhpc.engines.cuda_graph import Recorder, take, with_keys
from gnnhpc.engines.engine import StagePlan
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.kernels.dropout_mask import MaskKeys
from gnnhpc.models.layers.split_backward import DeferredGradient
from gnnhpc.records.schema import Phase


@dataclass
class Held:
    """What is kept of a micro-batch between its forward and the end of its backward."""

    x: Inputs
    """What the virtual stage computes with."""
    received: Tensor | None = None
    """The buffer that x was received in."""
    result: Tensor | None = None
    """What is differentiated, the output or the loss; None once its backward is done."""
    trains: bool = False
    """Whether anything that the result depends on has a gradient."""
    gradient: Tensor | None = None
    """The gradient of the output, in the buffer that it was received in."""
    deferred: list[DeferredGradient] = field(default_factory=list)
    """Gradients of weights that are still to be computed."""


Results = tuple[Tensor, ...]
Work = Callable[[Held], Results]


class Actions:
    """Computes the actions of a stage as they come."""

    def begin(self, phase: Phase, batch: Batch) -> Batch:
        """The mini-batch of a step, as its actions are to read it."""
        return batch

    def run(self, action: Action, held: Held, work: Work) -> tuple[Held, Results]:
        """Do the `work` of an action; what is kept of its micro-batch, and what it returned."""
        return held, work(held)


@dataclass
class _Captured:
    """The graphs of one phase, and the memory that they read and write."""

    batch: Batch
    graphs: dict[Action, tuple[torch.cuda.CUDAGraph, Results]] = field(default_factory=dict)
    held: dict[tuple[int, int], Held] = field(default_factory=dict)
    """Virtual stage and micro-batch -> what its graphs read and write."""
    gradients: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """The same -> where the graph of its backward reads the gradient of the output."""


class StageGraphs(Actions):
    """Replays the actions of a stage.

    In the first step of a phase each action is computed, and captured after that. A capture that a
    layer does not allow leaves the phase eager, and `forget` drops what the layers keep of a
    mini-batch that was not captured. A mini-batch that does not fit what was captured is computed.
    A replay overwrites the results of the last; the device has to be done with it.
    """

    def __init__(self, device: torch.device, timer: StepTimer, forget: Callable[[], None]) -> None:
        self.keys = MaskKeys(device)
        self.eager: dict[Phase, str] = {}
        """Why the steps of a phase are not captured."""
        self.replays: dict[Phase, int] = {}
        """How many steps of a phase were replayed."""
        self._recorder = Recorder(device)
        self._timer = timer
        self._forget = forget
        self._phase: Phase = "train"
        self._captured: dict[Phase, _Captured] = {}
        self._captures = self._replays = False
        """What the present step does; it computes where it does neither."""

    def record(self) -> dict[str, str]:
        """How the steps of each phase were computed, for the records."""
        found: dict[str, str] = {}
        for phase, count in self.replays.items():
            found[phase] = f"replayed {count} times"
        for phase, why in self.eager.items():
            found[phase] = f"eager: {why}"
        return found

    def begin(self, phase: Phase, batch: Batch) -> Batch:
        self._phase, self._captures, self._replays = phase, False, False
        if phase in self.eager or self._timer.has_spans:
            return batch
        self.keys.set_step(batch.microbatches[0].context.step)
        self.keys.upload()
        batch = with_keys(batch, self.keys)
        captured = self._captured.get(phase)
        if captured is None:
            self._captured[phase] = _Captured(batch)
            self._captures = True
            return batch
        self._replays = take(captured.batch, batch)
        if not self._replays:
            return batch
        self.replays[phase] = self.replays.get(phase, 0) + 1
        return captured.batch

    def run(self, action: Action, held: Held, work: Work) -> tuple[Held, Results]:
        if self._replays:
            return self._replay(action, held)
        if not self._captures:
            return super().run(action, held, work)
        results = self._recorder.compute(lambda: work(held))
        try:
            self._capture(action, held, work)
        except RuntimeError as error:
            self._captures = False
            self.eager[self._phase] = str(error).strip().splitlines()[0]
            self._forget()
        return held, results

    def _capture(self, action: Action, held: Held, work: Work) -> None:
        captured, place = self._captured[self._phase], (action.virtual_stage, action.microbatch)
        if action.kind == "forward":
            captured.held[place] = Held(held.x if held.received is None else _copy(held.x))
        static = captured.held[place]
        if action.kind == "backward" and held.gradient is not None:
            static.gradient = captured.gradients[place] = held.gradient.clone()
        captured.graphs[action] = self._recorder.capture(lambda: work(static))

    @torch.no_grad()
    def _replay(self, action: Action, held: Held) -> tuple[Held, Results]:
        captured, place = self._captured[self._phase], (action.virtual_stage, action.microbatch)
        static = captured.held[place]
        if action.kind == "forward" and held.received is not None:
            static.received = held.received
            assert isinstance(static.x, Tensor)
            static.x.copy_(held.received)
        elif action.kind == "backward" and held.gradient is not None:
            captured.gradients[place].copy_(held.gradient)
        graph, results = captured.graphs[action]
        graph.replay()
        return static, results


def graphs_of(plan: StagePlan) -> StageGraphs | None:
    """Those of a plan's stage; None where its steps are computed."""
    if not plan.cuda_graph:
        return None
    return StageGraphs(plan.mesh.device, plan.timer, plan.stage.forget_minibatch)


def _copy(x: Inputs) -> Tensor:
    """A tensor of its own memory, that has a gradient where x has one."""
    assert isinstance(x, Tensor)
    return x.detach().clone().requires_grad_(x.requires_grad)
