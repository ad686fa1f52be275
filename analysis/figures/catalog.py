"""The registry of all figures. To add one, write a function and add a row to FIGURES."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.figures import (
    graph_figures,
    sampled_figures,
    speedup_figures,
    step_time,
    training_curves,
)
from analysis.figures.model_on_data import ModelOnData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureKind:
    """A row of the registry."""

    draw: Callable[..., Figure | str]
    """Takes a model on its data, and published points where a study has some; returns the figure,
    or why there is none. Its docstring is the caption, and its name the figure's."""
    section: str
    """Section of the report: headline, speed, learning, frameworks, chunks or sampled."""
    title: str = ""
    """What the figure shows, in a few words; its name unless given."""
    applies: Callable[[ModelOnData], bool] = lambda _: True
    """Whether a model and data can have this figure at all."""

    @property
    def name(self) -> str:
        return self.draw.__name__.replace("_", "-")

    @property
    def words(self) -> str:
        return self.title or self.name.replace("-", " ")

    @property
    def caption(self) -> str:
        return " ".join(inspect.getdoc(self.draw).split())  # type: ignore[union-attr]


def _waits(group: ModelOnData) -> bool:
    """Whether stages wait for one another, or replicas of one mini-batch do."""
    return not group.sampled or bool((group.cells["stages"] > 1).any())


def _of_graphs(group: ModelOnData) -> bool:
    return group.graphs


def _of_frameworks(group: ModelOnData) -> bool:
    return group.graphs and group.cells["implementation"].nunique() > 1


FIGURES = (
    FigureKind(speedup_figures.speedup, "headline"),
    FigureKind(speedup_figures.efficiency, "speed", applies=_waits),
    FigureKind(speedup_figures.strong_scaling, "speed", applies=_waits),
    FigureKind(speedup_figures.weak_scaling, "speed", applies=lambda group: not group.graphs),
    FigureKind(step_time.waterfall, "speed", "where a step loses time"),
    FigureKind(speedup_figures.bubble, "speed", applies=_waits),
    FigureKind(step_time.step_times, "speed"),
    FigureKind(speedup_figures.memory, "speed", "peak memory of each rank"),
    FigureKind(training_curves.loss, "learning", "training loss by layout"),
    FigureKind(training_curves.learning_over_time, "learning", "accuracy or loss against time"),
    FigureKind(training_curves.copies, "learning", "loss of data-parallel copies", _waits),
    FigureKind(graph_figures.framework_time, "frameworks", "time by framework", _of_frameworks),
    FigureKind(graph_figures.chunk_time, "chunks", "time against chunks", _of_graphs),
    FigureKind(graph_figures.chunk_accuracy, "chunks", "accuracy against chunks", _of_graphs),
    FigureKind(
        sampled_figures.epoch_time,
        "sampled",
        "time of an epoch against ranks",
        lambda group: group.sampled,
    ),
)
