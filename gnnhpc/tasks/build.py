"""Chooses the task of an experiment."""

from __future__ import annotations

from gnnhpc.spec.experiment import Experiment
from gnnhpc.tasks.classification import (
    GraphClassification,
    ImageClassification,
    NodeClassification,
)
from gnnhpc.tasks.task import Task


def build_task(experiment: Experiment) -> Task:
    """Classification of images, of nodes or of graphs, by the kind of data."""
    outputs = experiment.model.loaded.outputs
    match experiment.data.facts().kind:
        case "images":
            return ImageClassification(outputs)
        case "graph":
            return NodeClassification(outputs)
        case "graphs":
            return GraphClassification(outputs)
