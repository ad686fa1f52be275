"""Chooses the task of an experiment."""

from __future__ import annotations

from gnnhpc.spec.experiment import Experiment
from gnnhpc.tasks.classification import ImageClassification, NodeClassification
from gnnhpc.tasks.task import Task


def build_task(experiment: Experiment) -> Task:
    """Classification of images or of nodes, by the kind of data."""
    outputs = experiment.model.loaded.outputs
    if experiment.data.facts().kind == "images":
        return ImageClassification(outputs)
    return NodeClassification(outputs)
