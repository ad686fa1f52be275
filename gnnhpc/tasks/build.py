"""Chooses the task of an experiment."""

from __future__ import annotations

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.tasks.classification import (
    GraphClassification,
    ImageClassification,
    NodeClassification,
)
from gnnhpc.tasks.links import LinkPrediction
from gnnhpc.tasks.task import Task


def build_task(experiment: Experiment) -> Task:
    """Links where they are asked for; else classification, by the kind of data."""
    if experiment.task is not None:
        return LinkPrediction(experiment.task.hits)
    outputs = experiment.model.loaded.outputs
    match experiment.data.facts().kind:
        case "images":
            return ImageClassification(outputs)
        case "graph":
            return NodeClassification(outputs)
        case "graphs":
            return GraphClassification(outputs)
