"""All watches of one rank: which steps they look at, and what they are told of a step.

Nothing here runs between a step's barriers but two hooks that keep references (`stage_inputs`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.check.watches.choice import FIRST, LookBudget, drawn
from gnnhpc.check.watches.evaluation_watch import EvaluationWatch
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.gradient_watch import GradientWatch
from gnnhpc.check.watches.graph_watch import GraphWatch
from gnnhpc.check.watches.image_watch import ImageWatch
from gnnhpc.check.watches.initial_values import other_initial_values
from gnnhpc.check.watches.optimizer_watch import OptimizerWatch
from gnnhpc.check.watches.plain_tally import Ids, PlainTally, plain_gradient, plain_tally
from gnnhpc.check.watches.replica_watch import ReplicaWatch, unlike_replicas
from gnnhpc.check.watches.stage_traffic import Crossed, StageTraffic, sampled
from gnnhpc.check.watches.statistics_watch import StatisticsWatch
from gnnhpc.check.watches.watched import Watched
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.outline import hops
from gnnhpc.engines.base import StepOutput
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.schema import Phase
from gnnhpc.spec.experiment import Experiment
from gnnhpc.tasks.task import Tally
from gnnhpc.train.setup import TrainingParts


@dataclass
class RunWatch:
    """Told of every step by the observer; looks at few of them."""

    experiment: Experiment
    mesh: Mesh
    parts: TrainingParts
    data: ImageWatch | GraphWatch
    findings: Findings
    optimizer: OptimizerWatch
    evaluation: EvaluationWatch
    replicas: ReplicaWatch
    traffic: StageTraffic
    gradients: GradientWatch
    statistics: StatisticsWatch
    crossed: list[Crossed] = field(default_factory=list)
    budget: LookBudget = field(default_factory=LookBudget)
    _steps: int = 0
    _number: int = 0
    """Of the present step in its phase, or in its evaluation."""
    _evaluations: int = 0
    _evaluating: bool = False
    _tested: int = 0
    """Mini-batches of this evaluation."""
    _last_step: bool = False
    _looks: bool = False
    """Whether the present step is looked at."""
    _looks_at_evaluation: bool = False

    @classmethod
    def of(
        cls, experiment: Experiment, mesh: Mesh, parts: TrainingParts, root: Path | None
    ) -> RunWatch:
        """Watches of a rank whose parts are set up; nothing is read before the first look."""
        findings, stage = Findings(), parts.stage
        data: ImageWatch | GraphWatch
        if experiment.data.facts().kind == "images":
            total = parts.batches.total_samples
            data = ImageWatch(experiment, mesh, root, findings, total)
        else:
            data = GraphWatch(experiment, mesh, root, findings, hops(parts.outlines))
        return cls(
            experiment,
            mesh,
            parts,
            data,
            findings,
            OptimizerWatch(experiment, stage, parts.optimizer, findings),
            EvaluationWatch(stage, findings),
            ReplicaWatch(stage),
            StageTraffic(stage, mesh.is_first, mesh.is_last),
            GradientWatch(experiment, stage, findings),
            StatisticsWatch(stage, findings),
        )

    def before_training_step(self, step: int, batch: Batch) -> None:
        if self._steps == 0:
            with self._looking():
                self._check_beginning(step)
        self._steps, self._number = self._steps + 1, step
        self._last_step = step == self.experiment.train_steps - 1
        self._looks = self._chosen(step, batch)
        if isinstance(self.data, ImageWatch):
            self.data.check_order(step, batch)
        if not self._looks:
            return
        with self._looking():
            if isinstance(self.data, ImageWatch):
                self.data.before("train", step, step, batch)
            self.optimizer.before_step()
            self.statistics.before_step()
        self.gradients.attach()
        self.traffic.attach(training=True, on_first=self.optimizer.before_first_forward)

    def after_training_step(self, step: int, batch: Batch, trained: StepOutput) -> None:
        if not self._looks:
            return
        self.traffic.detach()
        self.gradients.detach()
        with self._looking():
            self._check_inputs("train", step, step, batch)
            self._check_outputs("train", step, trained.outputs)
            self._check_loss(step, batch, trained)
            self.optimizer.after_step(step)
            self.gradients.after_step(step)
            self.statistics.after_step(step)

    def before_evaluation(self, step: int) -> None:
        """Before replicas average their statistics; `step` is the next of the test phase."""
        self._evaluations, self._evaluating = self._evaluations + 1, True
        self._tested = 0
        affordable = self.budget.affordable or self._evaluations == 1 or self._last_step
        self._looks_at_evaluation = affordable
        if affordable:
            with self._looking():
                self.evaluation.before(step)

    def after_averaging(self) -> None:
        if self._looks_at_evaluation:
            with self._looking():
                self.evaluation.averaged()

    def before_test_step(self, step: int, batch: Batch) -> None:
        self._looks = self._looks_at_evaluation and self._tested == 0
        self._number = self._tested
        if not self._looks:
            return
        with self._looking():
            if isinstance(self.data, ImageWatch):
                self.data.before("test", step, self._tested, batch)
        self.traffic.attach(training=False)

    def after_test_step(self, step: int, batch: Batch, outputs: Sequence[Tensor]) -> None:
        number, self._tested = self._tested, self._tested + 1
        if not self._looks:
            return
        self.traffic.detach()
        with self._looking():
            self._check_inputs("test", step, number, batch)
            self._check_outputs("test", step, outputs)
            if self.traffic.given and (self._evaluations == 1 or self.budget.affordable):
                self.evaluation.evaluate_again(*self.traffic.given[-1])

    def after_evaluation(self) -> None:
        if self._looks_at_evaluation:
            with self._looking():
                self.evaluation.after()
        self._evaluating = False

    def before_checkpoint(self, step: int) -> None:
        """Raises GnnhpcError where something wrong was found: it would be gone on with.

        A collective. A checkpoint holds one replica's parameters, so differences end with it.
        """
        hashes = self.replicas.take(f"the checkpoint before step {step}")
        everyone = self.mesh.gather_objects((hashes, [str(f) for f in self.findings.kept]))
        unlike = unlike_replicas([found for found, _ in everyone], self.mesh.layout)
        found = [unlike] if unlike else [cause for _, causes in everyone for cause in causes]
        if found:
            raise GnnhpcError(f"no checkpoint is written of a run that is wrong: {found[0]}")

    def watched(self) -> Watched:
        """After the last step: all that was seen."""
        self.replicas.take("the last step")
        return Watched(
            self.experiment.data.facts().kind,
            self.parts.implementation == "own",
            self.findings,
            self.replicas.hashes,
            self.evaluation.evaluated,
            self.crossed,
            self.gradients.shared,
            self.experiment.dtype,
        )

    def _chosen(self, step: int, batch: Batch) -> bool:
        """Whether to look at a training step; every rank comes to the same answer."""
        if self._steps <= FIRST or self._last_step:
            return True
        if not self.budget.affordable:
            return False
        per_epoch = self._steps_per_epoch()
        seed = self.experiment.seed
        return drawn(seed, "train", batch.epoch, step % per_epoch, per_epoch)

    def _steps_per_epoch(self) -> int:
        batch_size = self.experiment.batch_size
        if batch_size is None:
            return 1
        together = batch_size * self.experiment.layout.replicas
        return self.parts.batches.total_samples // together

    def _check_inputs(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """The data, the contexts and the modules' mode of a step that is over."""
        given = self.traffic.given
        self.findings.looks["modes"] += 1
        if self.traffic.wrong_mode is not None:
            wanted = "training" if phase == "train" else "evaluation"
            cause = f"{self.traffic.wrong_mode} is not in {wanted} mode"
            self.findings.add("modes", phase, step, cause)
        self.findings.looks["contexts"] += 1
        wanted_contexts = [(m, number, self.experiment.seed) for m in range(len(given))]
        found = [(c.microbatch, c.step, c.seed) for _, c in given]
        if sorted(found) != wanted_contexts or len(given) != self.experiment.microbatches:
            cause = (
                f"forwards were of micro-batch, step, seed {found[0] if found else None} and so "
                f"on, {self.experiment.microbatches} micro-batches of step {number} and seed "
                f"{self.experiment.seed} were planned: masks of dropout follow from them"
            )
            self.findings.add("contexts", phase, step, cause)
            return
        if isinstance(self.data, ImageWatch):
            self.data.after(phase, step, number, batch, given)
        else:
            self.data.after(phase, step, batch, given)

    def _check_outputs(self, phase: Phase, step: int, outputs: Sequence[Tensor]) -> None:
        """What the engine returns is what the last stage's forwards gave, in their order."""
        self.crossed.append(self.traffic.crossed(phase, step))
        if not self.mesh.is_last:
            return
        self.findings.looks["outputs"] += 1
        kept = [self.traffic.outputs[m] for m in sorted(self.traffic.outputs)]
        same = [torch.equal(a, b) for a, b in zip(kept, outputs, strict=False)]
        if len(kept) != len(outputs) or not all(same):
            which = f"of micro-batch {same.index(False)}" if False in same else "all"
            cause = f"the outputs {which} are not what the last stage's forward gave"
            self.findings.add("outputs", phase, step, cause)

    def _check_loss(self, step: int, batch: Batch, trained: StepOutput) -> None:
        """The loss that was differentiated, worked out from the outputs and the raw labels."""
        wanted = self._plain_tally("train", step, batch, trained.outputs, "train")
        if wanted is None:
            return
        self.findings.looks["raw loss"] += 1
        share = self.experiment.layout.replicas / batch.labelled
        told = float(sum(float(loss) for loss in trained.losses))
        if not abs(told - wanted.loss * share) <= wanted.loss_error * share:
            cause = f"the loss is {told:.6g}, of the raw labels {wanted.loss * share:.6g}"
            self.findings.add("raw loss", "train", step, cause)
        self._check_loss_gradient(step, batch, share)

    def _check_loss_gradient(self, step: int, batch: Batch, share: float) -> None:
        """Where the backward begins: the gradient that the loss gives the last stage's outputs."""
        labels, gradients = self._labels("train", step, batch), self.traffic.output_gradients()
        kind = self.experiment.model.loaded.outputs
        self.findings.looks["loss gradient"] += 1
        for m, label in enumerate(labels or []):
            found, output = gradients.get(m), self.traffic.outputs.get(m)
            if found is None or output is None:
                cause = f"no backward began at micro-batch {m}"
            else:
                wanted, error = plain_gradient(output, label, kind, share)
                off = np.abs(found.cpu().double().numpy() - sampled(wanted.reshape(-1)))
                if (off <= sampled(error.reshape(-1))).all():
                    continue
                cause = f"the backward of micro-batch {m} does not begin at the loss's gradient"
            self.findings.add("loss gradient", "train", step, cause)
            return

    def check_tally(
        self, phase: Phase, batch: Batch, outputs: Sequence[Tensor], tally: Tally
    ) -> None:
        """What will be reported of a step that was looked at, on the last stage."""
        if not self._looks or not self.mesh.is_last:
            return
        with self._looking():
            number = self._number
            for name, (found, count) in tally.items():
                split = name.removesuffix("_accuracy") if name.endswith("_accuracy") else phase
                wanted = self._plain_tally(phase, number, batch, outputs, split)
                if wanted is None:
                    return
                self.findings.looks["metrics"] += 1
                exact = wanted.loss if name == "loss" else float(wanted.right)
                error = wanted.loss_error if name == "loss" else float(wanted.ties)
                if count != wanted.labelled or not abs(found - exact) <= error:
                    cause = (
                        f"{name} is {found:.6g} over {count:g}, of the outputs and the raw labels "
                        f"{exact:.6g} over {wanted.labelled}"
                    )
                    self.findings.add("metrics", phase, number, cause)

    def _plain_tally(
        self, phase: Phase, number: int, batch: Batch, outputs: Sequence[Tensor], split: str
    ) -> PlainTally | None:
        """None on other stages than the last, and where labels cannot be read again."""
        if not self.mesh.is_last:
            return None
        labels = self._labels(split, number, batch, phase)
        if labels is None:
            return None
        return plain_tally(outputs, labels, self.experiment.model.loaded.outputs)

    def _labels(
        self, split: str, number: int, batch: Batch, phase: Phase = "train"
    ) -> list[Ids] | None:
        """Each micro-batch's, read again; none where they cannot be."""
        if isinstance(self.data, ImageWatch):
            return self.data.labels(phase, number, batch)
        return self.data.labels(split, batch)

    def _check_beginning(self, step: int) -> None:
        """Before the first step of an attempt; one that resumes begins with loaded values."""
        self.replicas.take("the first step")
        if step > 0:
            return
        self.findings.looks["initial values"] += 1
        cause = other_initial_values(self.experiment, self.parts.stage)
        if cause is not None:
            self.findings.add("initial values", "train", step, cause)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Counts what a look costs; reading files again must not be taken for a hang."""
        began = time.thread_time()
        with self.parts.timer.storage("reading the data again"):
            yield
        # The first looks read the data, which no later ones do.
        first = self._evaluations <= 1 if self._evaluating else self._steps <= 1
        if not first:
            self.budget.spent_s += time.thread_time() - began
