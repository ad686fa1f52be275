"""All watches of one rank: what they see of every step, and which steps they look at closely.

Nothing here runs between a step's barriers but hooks that keep references and small copies.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.watches.choice import FIRST, LookBudget, drawn
from gnnhpc.check.watches.continuity import Continuity
from gnnhpc.check.watches.data_watch import DataWatch
from gnnhpc.check.watches.dropout_watch import DropoutWatch
from gnnhpc.check.watches.evaluation_watch import EvaluationWatch
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.gradient_watch import GradientWatch
from gnnhpc.check.watches.graph_set_watch import GraphSetWatch
from gnnhpc.check.watches.graph_watch import GraphWatch
from gnnhpc.check.watches.image_watch import ImageWatch
from gnnhpc.check.watches.initial_values import other_initial_values
from gnnhpc.check.watches.last_outputs import LastOutputs
from gnnhpc.check.watches.layer_backwards import LayerBackwards
from gnnhpc.check.watches.layer_rows import LayerRowsWatch
from gnnhpc.check.watches.layer_times import LayerTimes
from gnnhpc.check.watches.link_watch import LinkWatch
from gnnhpc.check.watches.optimizer_watch import OptimizerWatch
from gnnhpc.check.watches.recomputed_outputs import TOLERANCE, RecomputedOutputs
from gnnhpc.check.watches.replica_watch import ReplicaWatch
from gnnhpc.check.watches.sampled_watch import SampledWatch
from gnnhpc.check.watches.seeded_generators import NAME, DrawnByLayers, other_generators
from gnnhpc.check.watches.stage_traffic import Crossed, StageTraffic, sampled
from gnnhpc.check.watches.statistics_watch import StatisticsWatch
from gnnhpc.check.watches.step_checks import StepChecks
from gnnhpc.check.watches.watched import Watched
from gnnhpc.core.layer_specs import hops
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Phase
from gnnhpc.tasks.task import Tally
from gnnhpc.train.setup import TrainingParts


@dataclass
class RunWatch:
    """Told of every step by the observer; looks at few of them closely."""

    experiment: Experiment
    mesh: Mesh
    parts: TrainingParts
    data: DataWatch
    findings: Findings
    optimizer: OptimizerWatch
    evaluation: EvaluationWatch
    replicas: ReplicaWatch
    traffic: StageTraffic
    last: LastOutputs
    checks: StepChecks
    gradients: GradientWatch
    statistics: StatisticsWatch
    dropout: DropoutWatch
    continuity: Continuity
    layers: LayerRowsWatch
    layer_times: LayerTimes
    layer_backwards: LayerBackwards
    recomputed: RecomputedOutputs
    drawn: DrawnByLayers
    seeded: bool = True
    """Whether generators begin as the experiment's seed says."""
    crossed: list[Crossed] = field(default_factory=list)
    budget: LookBudget = field(default_factory=LookBudget)
    _steps: int = 0
    _step: int = 0
    """The present one, in its phase."""
    _number: int = 0
    """The same, of the test phase within its evaluation."""
    _evaluations: int = 0
    _evaluating: bool = False
    _tested: int = 0
    """Mini-batches of this evaluation."""
    _last_step: bool = False
    _looks: bool = False
    """Whether the present step is looked at."""
    _looks_at_evaluation: bool = False
    _tested_closely: int = 0
    """Which mini-batch of this evaluation is looked at besides the first."""

    @classmethod
    def of(
        cls, experiment: Experiment, mesh: Mesh, parts: TrainingParts, root: Path | None
    ) -> RunWatch:
        """Watches of a rank whose parts are set up; nothing is read before the first look."""
        findings, stage = Findings(), parts.stage
        data: DataWatch
        kind = experiment.data.facts().kind
        if kind == "images":
            total = parts.batches.total_samples
            data = ImageWatch(experiment, mesh, root, findings, total)
        elif kind == "graphs":
            data = GraphSetWatch(experiment, mesh, root, findings, hops(parts.outlines))
        elif experiment.task is not None:
            data = LinkWatch(experiment, mesh, root, findings, hops(parts.outlines))
        elif experiment.sampling is not None:
            data = SampledWatch(experiment, mesh, root, findings, hops(parts.outlines))
        else:
            data = GraphWatch(experiment, mesh, root, findings, hops(parts.outlines))
        traffic = StageTraffic(stage, mesh.is_first, mesh.has_loss)
        last = LastOutputs.of(stage, is_last=mesh.has_loss)
        recomputed = RecomputedOutputs(findings, TOLERANCE[experiment.dtype])
        if experiment.activation_checkpointing != "never":
            recomputed.attach(stage)
        sampling = experiment.sampling
        alone = sampling is None or sampling.sampler == "ours"
        drawn_by_layers = DrawnByLayers(findings, alone)
        # Ours draw from the context alone.
        if parts.implementation == "own":
            drawn_by_layers.attach(stage)
        return cls(
            experiment,
            mesh,
            parts,
            data,
            findings,
            OptimizerWatch(experiment, stage, parts.optimizer, findings),
            EvaluationWatch(stage, findings, parts.implementation == "own"),
            ReplicaWatch(stage),
            traffic,
            last,
            StepChecks(experiment, mesh, data, findings, traffic, last),
            GradientWatch(experiment, stage, findings),
            StatisticsWatch(stage, findings),
            DropoutWatch(experiment, stage, findings),
            Continuity(stage, parts.optimizer, findings),
            LayerRowsWatch(stage),
            LayerTimes(stage),
            # Torch's engine, which a single stage does not take, calls no layers together.
            LayerBackwards(stage, experiment.engine == "pipelining" and mesh.layout.stages > 1),
            recomputed,
            drawn_by_layers,
        )

    def before_training_step(self, step: int, batch: Batch) -> None:
        if self._steps == 0:
            with self._looking():
                self._check_beginning(step)
        self._steps, self._step, self._number = self._steps + 1, step, step
        self._last_step = step == self.experiment.train_steps - 1
        self._looks = self._chosen(step)
        self.continuity.check("train", step)
        self.data.check_order(step, batch)
        self.last.begin()
        self.recomputed.begin_step()
        self.drawn.before_step(step, closely=self._looks)
        if not self._looks:
            self.optimizer.before_step(one=step)
            self.statistics.before_step(closely=False)
            return
        with self._looking():
            self.data.before("train", step, step, batch)
            self.optimizer.before_step()
            self.statistics.before_step(closely=True)
        self.gradients.attach()
        self.dropout.attach()
        self.traffic.attach(training=True, on_first=self.optimizer.before_first_forward)
        self.layer_times.attach()
        self.layer_backwards.attach()

    def after_training_step(
        self, step: int, batch: Batch, trained: StepOutput, grad_norm: float | None
    ) -> None:
        self.last.end()
        self.continuity.after_training_step(step)
        self.recomputed.after_step(step)
        self.drawn.after_step(step)
        if not self._looks:
            self.checks.check_outputs("train", step, trained.outputs)
            self.data.check_cheaply("train", step, step, batch)
            self.optimizer.after_step(step)
            self.statistics.after_step(step)
            return
        self.layer_backwards.detach()
        self.layer_times.detach()
        self.traffic.detach()
        self.gradients.detach()
        self.dropout.detach()
        with self._looking():
            self.crossed.append(self.traffic.crossed("train", step))
            self.checks.check_inputs("train", step, step, batch)
            self.checks.check_outputs("train", step, trained.outputs)
            self.checks.check_loss(step, batch, trained)
            self.optimizer.after_step(step)
            self.gradients.after_step(step)
            self.gradients.check_norm(step, grad_norm)
            self.statistics.after_step(step)
            self.dropout.after_step(step)

    def before_evaluation(self, step: int) -> None:
        """Before replicas average their statistics; `step` is the next of the test phase."""
        self.continuity.check("test", step)
        self._evaluations, self._evaluating = self._evaluations + 1, True
        self._tested = 0
        rule = random.Random(f"{self.experiment.seed}/test/{step}")
        self._tested_closely = rule.randrange(self.experiment.test_steps)
        affordable = self.budget.affordable or self._evaluations == 1 or self._last_step
        self._looks_at_evaluation = affordable
        if affordable:
            with self._looking():
                self.evaluation.before(step)

    def after_averaging(self) -> None:
        self.continuity.keep()
        if self._looks_at_evaluation:
            with self._looking():
                self.evaluation.averaged()

    def before_test_step(self, step: int, batch: Batch) -> None:
        chosen = self._tested in {0, self._tested_closely}
        self._looks = self._looks_at_evaluation and chosen
        self._number, self._step = self._tested, step
        self.last.begin()
        self.drawn.before_test_step()
        if not self._looks:
            return
        with self._looking():
            self.data.before("test", step, self._tested, batch)
            graphs = enumerate(each.context.graph for each in batch.microbatches)
            chunks = {m: chunk for m, chunk in graphs if chunk is not None and chunk.in_turn}
            if isinstance(self.data, SampledWatch) and chunks:
                rule = random.Random(f"{self.experiment.seed}/layers/{step}")
                self.layers.attach(self.data.whole.graph, chunks, rule)
        self.traffic.attach(training=False)
        self.layer_times.attach()

    def after_test_step(self, step: int, batch: Batch, outputs: Sequence[Tensor]) -> None:
        number, self._tested = self._tested, self._tested + 1
        self.last.end()
        self.drawn.after_test_step()
        if not self._looks:
            self.checks.check_outputs("test", step, outputs)
            self.data.check_cheaply("test", step, number, batch)
            return
        self.layer_times.detach()
        self.traffic.detach()
        self.layers.detach()
        with self._looking():
            self.crossed.append(self.traffic.crossed("test", step))
            self.checks.check_inputs("test", step, number, batch)
            self.checks.check_outputs("test", step, outputs)
            if self._evaluations == 1 or self.budget.affordable:
                self._evaluate_again()

    def _evaluate_again(self) -> None:
        """A drawn micro-batch of the stage, or of each part that is called by itself: of those
        whose input is still there, if there are some."""
        rule = random.Random(f"{self.experiment.seed}/again/{self._step}")
        for part, called in enumerate(self.traffic.stage.called):
            given = list(self.traffic.given.get(part, ()))
            if not given or len(self.mesh.devices) > 1:
                continue
            rule.shuffle(given)
            outputs = (self._output_of(part, x, context.microbatch) for x, context in given)
            pairs = zip(given, outputs, strict=True)
            chosen = next((pair for pair in pairs if pair[1] is not None), (given[0], None))
            (x, context), output = chosen
            if context.graph is None or context.graph.in_turn is None:
                self.evaluation.evaluate_again(called, x, context, output)

    def _output_of(self, part: int, x: Inputs, microbatch: int) -> Tensor | None:
        """Elements of what the step gave of a part's input; None where the input lies in a buffer
        that holds another one by now."""
        received = self.traffic.sample("input", part, microbatch)
        if isinstance(x, Tensor) and received is not None:
            now = sampled(x.detach().reshape(-1))
            if not torch.equal(received, now):
                return None
        sent = self.traffic.sample("output", part, microbatch)
        last = self.last.by_microbatch.get(microbatch)
        return sent if sent is not None or last is None else sampled(last.reshape(-1))

    def after_evaluation(self) -> None:
        if self._looks_at_evaluation:
            with self._looking():
                self.evaluation.after()
        self._evaluating = False

    def before_report(
        self, phase: Phase, batch: Batch, outputs: Sequence[Tensor], tally: Tally
    ) -> None:
        """After each step, on stages with the loss: what will be reported of it."""
        self.checks.check_tally(phase, self._step, self._number, batch, outputs, tally)

    def before_checkpoint(self, step: int) -> None:
        """A checkpoint holds one replica's parameters: the audit compares them by these hashes."""
        self.replicas.take(f"the checkpoint before step {step}")

    def watched(self) -> Watched:
        """After the last step: all that was seen."""
        self.replicas.take("the last step")
        return Watched(
            self.data.kind,
            self.parts.implementation == "own",
            self.findings,
            self.replicas.hashes,
            self.evaluation.evaluated,
            self.crossed,
            self.gradients.shared,
            self.experiment.dtype,
            dict(self.data.chunks),
            self.data.nodes_and_edges,
            dict(self.data.facts),
            self.data.evaluated,
            self.checks.tallies,
        )

    @property
    def looks(self) -> bool:
        """Whether the present step is looked at within it."""
        return self._looks

    def _chosen(self, step: int) -> bool:
        """Whether to look at a training step; every rank comes to the same answer."""
        if self._steps <= FIRST or self._last_step:
            return True
        if not self.budget.affordable:
            return False
        return drawn(self.experiment.seed, "train", step, self.parts.batches.steps_per_epoch)

    def _check_beginning(self, step: int) -> None:
        """Before the first step of an attempt; one that resumes begins with loaded values."""
        self.replicas.take("the first step")
        if step > 0:
            return
        if self.seeded:
            self.findings.looks[NAME] += 1
            cause = other_generators(self.experiment.seed, self.mesh.rank, self.mesh.devices)
            if cause is not None:
                self.findings.add(NAME, "train", step, cause)
        self.findings.looks["initial values"] += 1
        cause = other_initial_values(self.experiment, self.parts.stage)
        if cause is not None:
            self.findings.add("initial values", "train", step, cause)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Counts what a look costs; reading files again must not be taken for a hang."""
        began = time.perf_counter()
        # A run that diverges must end by what it says itself, not by a warning here.
        with self.parts.timer.storage("reading the data again"), np.errstate(all="ignore"):
            yield
        # The first looks read the data, which no later ones do.
        first = self._evaluations <= 1 if self._evaluating else self._steps <= 1
        if not first:
            self.budget.spent_s += time.perf_counter() - began
