"""Checks which samples a run trains on and evaluates, from the ids of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check, Phase
from gnnhpc.training.events import Listener, StepTaken
from gnnhpc.validation.reference.sample_schedule import Ids, SampleSchedule
from gnnhpc.validation.verdicts import verdict_of


@dataclass
class _Observed:
    """What one rank reports to the others since they last compared."""

    faults: list[str] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    """Checksums of the batches, in the order of steps."""
    places: list[str] = field(default_factory=list)
    covered: dict[Phase, Ids] = field(default_factory=dict)
    """Samples of the first step of a phase without a schedule."""


class SampleOrder(Listener):
    """Observes one rank's batches; `checks` is a collective that all ranks call together.

    Samples of mini-batches must be those of the permutation that seed and epoch give, which covers
    an epoch without duplicates. Samples of chunks of a graph and of its evaluation must be the same
    in every step, each on one replica. Batches must be the same on all stages.
    """

    def __init__(self, experiment: Experiment, mesh: Mesh, batches: Batches) -> None:
        self._mesh = mesh
        self._schedules: dict[Phase, SampleSchedule] = {}
        if experiment.batch_size is not None:
            self._schedules["train"] = SampleSchedule.of(experiment, batches.total_samples)
        if isinstance(batches, ImageBatches) and experiment.test_steps:
            self._schedules["test"] = SampleSchedule.of(experiment, len(batches.images["test"]))
        self._observed = _Observed()
        self._known: list[str] = []
        self._unchanged: dict[Phase, Ids] = {}
        self._evaluated = 0
        """Test steps since the evaluation began."""

    def evaluation_begins(self) -> None:
        self._evaluated = 0

    def step_taken(self, taken: StepTaken) -> None:
        place, ids = f"{taken.phase} step {taken.step}", taken.batch.sample_ids
        cause = self._difference(taken, ids)
        if cause is not None:
            self._observed.faults.append(f"{place}: {cause}")
        self._observed.checksums.append(taken.batch.checksum)
        self._observed.places.append(place)
        self._evaluated += taken.phase == "test"

    def _difference(self, taken: StepTaken, ids: Ids) -> str | None:
        schedule = self._schedules.get(taken.phase)
        if schedule is not None:
            step = taken.step if taken.phase == "train" else self._evaluated
            if np.array_equal(ids, schedule.share(step, self._mesh.replica)):
                return None
            return f"the samples are not those of the permutation of epoch {schedule.epoch(step)}"
        before = self._unchanged.setdefault(taken.phase, ids)
        if before is not ids and not np.array_equal(before, ids):
            return "the samples are not those of the steps before"
        self._observed.covered.setdefault(taken.phase, ids)
        return None

    def checks(self) -> list[Check]:
        """Compare all ranks and return the checks, on every rank; a collective."""
        everyone: list[_Observed] = self._mesh.gather_objects(self._observed)
        self._observed = _Observed()
        layout = self._mesh.layout
        for rank, observed in enumerate(everyone):
            self._known += [f"rank {rank}, {fault}" for fault in observed.faults]
        replicas = [everyone[rank] for rank in layout.replica_ranks(0)]
        for phase in replicas[0].covered:
            together = np.concatenate([each.covered[phase] for each in replicas])
            twice = len(together) - len(np.unique(together))
            if twice:
                self._known.append(f"{phase}: {twice} samples are used twice, replicas overlap")
        for replica in range(layout.replicas):
            ranks = layout.pipeline_ranks(replica)
            self._known += _other_batches([everyone[rank] for rank in ranks], replica)
        good = "samples are those of the seed's permutation, and the same on all stages"
        return [verdict_of("order", self._known, good)]


def _other_batches(stages: Sequence[_Observed], replica: int) -> list[str]:
    """The first step in which a stage has another batch than the first stage."""
    first = stages[0]
    for stage, other in enumerate(stages[1:], 1):
        pairs = zip(first.checksums, other.checksums, first.places, strict=False)
        place = next((place for one, two, place in pairs if one != two), None)
        if place is not None:
            return [
                f"replica {replica}, {place}: stages 0 and {stage} have different batches, so that "
                "labels do not belong to inputs"
            ]
    return []
