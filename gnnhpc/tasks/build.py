"""Which task an experiment is about."""

from __future__ import annotations

from gnnhpc.spec.experiment import Experiment
from gnnhpc.tasks.classification import ImageClassification, NodeClassification
from gnnhpc.tasks.task import Task


def build_task(experiment: Experiment) -> Task:
    """Images and nodes are classified, by what the data are."""
    outputs = experiment.model.loaded.outputs
    if experiment.data.facts().kind == "images":
        return ImageClassification(outputs)
    return NodeClassification(outputs)
