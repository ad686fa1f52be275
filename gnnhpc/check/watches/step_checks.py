"""What is checked of steps: of all outputs and metrics, of some contexts, modes and loss."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.check.watches.data_watch import DataWatch
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.last_outputs import LastOutputs
from gnnhpc.check.watches.plain_pairs import link_metrics, loss_gradient, plain_loss
from gnnhpc.check.watches.plain_tally import (
    Ids,
    PlainSum,
    PlainTallies,
    PlainTally,
    class_metrics,
    plain_tally,
)
from gnnhpc.check.watches.stage_traffic import StageTraffic, sampled
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Phase
from gnnhpc.tasks.task import Tally


@dataclass
class StepChecks:
    """Of one rank; what concerns outputs is checked on stages with the loss."""

    experiment: Experiment
    mesh: Mesh
    data: DataWatch
    findings: Findings
    traffic: StageTraffic
    last: LastOutputs
    tallies: list[PlainTallies] = field(default_factory=list)
    """Of every step, what its outputs and the raw labels give."""

    def check_inputs(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """The data, the contexts and the modules' mode."""
        given, planned = self.traffic.given, self.experiment.microbatches
        self.findings.looks["modes"] += 1
        if self.traffic.wrong_mode is not None:
            mode = "training" if phase == "train" else "evaluation"
            cause = f"{self.traffic.wrong_mode} is not in {mode} mode"
            self.findings.add("modes", phase, step, cause)
        self.findings.looks["contexts"] += 1
        seed = self.experiment.seed
        wanted = [(m, number, seed) for m in range(planned)]
        parts = range(len(self.traffic.stage.called))
        contexts = [[c for _, c in given.get(part, [])] for part in parts]
        other = [
            found
            for each in contexts
            if (found := sorted((c.microbatch, c.step, c.seed) for c in each)) != wanted
        ]
        if other:
            first = other[0][0] if other[0] else "none"
            cause = (
                f"forwards were of (micro-batch, step, seed) {first} and so on, where {planned} "
                f"micro-batches of step {number} and seed {seed} were planned: masks of dropout "
                "follow from them"
            )
            self.findings.add("contexts", phase, step, cause)
        else:
            self.data.after(phase, step, number, batch, given[0])

    def check_outputs(self, phase: Phase, step: int, outputs: Sequence[Tensor]) -> None:
        """What the engine returns is what the model's last part gave, in their order."""
        if not self.mesh.has_loss:
            return
        self.findings.looks["outputs"] += 1
        cause = self.last.other_than(outputs)
        if cause is not None:
            self.findings.add("outputs", phase, step, cause)

    @property
    def _wrong_targets(self) -> bool:
        """Then loss and metrics are wrong too, and the targets are the cause."""
        return self.findings.wrong["targets"] > 0

    def check_loss(self, step: int, batch: Batch, trained: StepOutput) -> None:
        """The loss that was differentiated, and where its backward began."""
        if not self.mesh.has_loss or self._wrong_targets:
            return
        labels = self.data.labels("train", "train", step, batch)
        kind = self.experiment.outputs
        wanted = plain_loss(trained.outputs, labels, kind)
        self.findings.looks["raw loss"] += 1
        share = self.experiment.layout.replicas / self.data.labelled("train", step)
        told = float(sum(float(loss) for loss in trained.losses))
        if not abs(told - wanted.value * share) <= wanted.error * share:
            cause = f"the loss is {told:.6g}, of the raw labels {wanted.value * share:.6g}"
            self.findings.add("raw loss", "train", step, cause)
        self.findings.looks["loss gradient"] += 1
        gradients = self.traffic.output_gradients()
        for m, label in enumerate(labels):
            found, output = gradients.get(m), self.last.by_microbatch.get(m)
            if found is None or output is None:
                cause = f"no backward began at micro-batch {m}"
            else:
                gradient, error = loss_gradient(output, label, kind, share)
                off = np.abs(found.cpu().double().numpy() - sampled(gradient.reshape(-1)))
                if (off <= sampled(error.reshape(-1))).all():
                    continue
                cause = f"the backward of micro-batch {m} does not begin at the loss's gradient"
            self.findings.add("loss gradient", "train", step, cause)
            return

    def check_tally(
        self,
        phase: Phase,
        step: int,
        number: int,
        batch: Batch,
        outputs: Sequence[Tensor],
        tally: Tally,
    ) -> None:
        """What will be reported; `number` counts within an evaluation, `step` does not."""
        if self._wrong_targets:
            return
        plain = PlainTallies(phase, step, self._plain_metrics(phase, number, batch, outputs, tally))
        self.tallies.append(plain)
        for name, (found, count) in tally.items():
            wanted = plain.by_metric[name]
            self.findings.looks["metrics"] += 1
            if count != wanted.count or not abs(found - wanted.value) <= wanted.error:
                cause = (
                    f"{name} is {found:.6g} over {count:g}, of the outputs and the raw labels "
                    f"{wanted.value:.6g} over {wanted.count}"
                )
                self.findings.add("metrics", phase, step, cause)

    def _plain_metrics(
        self, phase: Phase, number: int, batch: Batch, outputs: Sequence[Tensor], names: Tally
    ) -> dict[str, PlainSum]:
        kind, task = self.experiment.outputs, self.experiment.task

        @functools.cache
        def labels(split: str) -> list[Ids]:
            return self.data.labels(phase, split, number, batch)

        if kind != "embeddings" or task is None:

            @functools.cache
            def tally_of(split: str) -> PlainTally:
                return plain_tally(outputs, labels(split), kind)

            return class_metrics(phase, names, tally_of)
        return link_metrics(phase, names, outputs, labels, task.hits)
