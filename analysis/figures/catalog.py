"""The registry of all figures. To add one, write a function and add a row to FIGURES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.figures import graph_figures, sampled_figures, scaling, step_time, training_curves
from analysis.figures.model_on_data import ModelOnData
from analysis.studies.study import published_studies, read_published
from analysis.studies.study_rows import published_epochs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Points = Callable[[ModelOnData], "pd.DataFrame | None"]
Draw = Callable[..., "Figure | str"]


def _loss_points(group: ModelOnData) -> pd.DataFrame | None:
    known = (group.model, group.data) == ("vig", "cifar10")
    return read_published("raffi_loss_figure3") if known else None


def _chunk_points(group: ModelOnData) -> pd.DataFrame | None:
    if (group.model, group.data) != ("gat", "pubmed"):
        return None
    points = read_published("dearing_table3_pubmed")
    return points[(points["rebuild"] == "yes") & (points["framework"] == "DGL")]


def _single_device_points(group: ModelOnData) -> pd.DataFrame | None:
    points = read_published("dearing_table2_single_device")
    mine = points[points["dataset"].str.lower() == group.data]
    return mine if group.model == "gat" and len(mine) else None


def _epoch_points(group: ModelOnData) -> pd.DataFrame | None:
    points = published_epochs(published_studies()["boca"])
    mine = points[points["model"] == group.model]
    return mine if group.data == "reddit" and len(mine) else None


@dataclass(frozen=True)
class FigureKind:
    """A row of the registry."""

    name: str
    section: str
    """Section of the report: headline, speed, learning, frameworks, chunks or sampled."""
    title: str
    caption: str
    draw: Draw
    """Takes a group, and published points where `points` finds some; returns the figure, or why
    there is none."""
    applies: Callable[[ModelOnData], bool] = lambda _: True
    """Whether a model and data can have this figure at all."""
    points: Points | None = None
    """Published points of the same model and data, None without any."""
    published: str = ""
    """What the caption says of them."""


def _waits(group: ModelOnData) -> bool:
    """Whether stages wait for one another, or replicas of one mini-batch do."""
    return not group.sampled or bool((group.cells["stages"] > 1).any())


def _of_frameworks(group: ModelOnData) -> bool:
    return group.graphs and group.cells["implementation"].nunique() > 1


FIGURES = (
    FigureKind(
        "speedup",
        "headline",
        "speedup",
        "Speedup in samples a second of training over the baseline that the axis names, with "
        "intervals over runs; an arrow shows that an interval goes on. Ticks are the bound: "
        "R·S·M/(M+(S-1)/V) with V virtual stages, or the order of actions for zero-bubble and "
        "zbv, over that of the baseline. A hollow marker lies above its bound, its layers' "
        "seconds do not explain why, and it is not valid.",
        scaling.speedup,
    ),
    FigureKind(
        "efficiency",
        "speed",
        "efficiency",
        "Ideal step time (the schedule with the measured forward and backward seconds of each "
        "stage, and nothing else) over the measured step time.",
        scaling.efficiency,
        _waits,
    ),
    FigureKind(
        "strong-scaling",
        "speed",
        "strong scaling",
        "Speedup, and speedup over ranks, of layouts that share the baseline's samples a step; of "
        "each layout the fastest configuration.",
        scaling.strong_scaling,
        _waits,
    ),
    FigureKind(
        "weak-scaling",
        "speed",
        "weak scaling",
        "Speedup of samples a second, and speedup over ranks, of layouts in which each replica has "
        "the baseline's mini-batch; of each layout the fastest configuration.",
        scaling.weak_scaling,
        lambda group: not group.graphs,
    ),
    FigureKind(
        "waterfall",
        "speed",
        "where a step loses time",
        "From the best sequential step on as many ranks that lose nothing (linear) to the measured "
        "step, in parts that add up: the schedule's bubble, up to the bound; recomputed forwards; "
        "micro-batches, which cost a sequential run too; contention: passes slower when ranks run "
        "side by side; imbalance of stages; other waiting, as for transfers, with what lies "
        "between spans; all-reduce; the rest. Pale bars are gains. An arrow means that the "
        "interval goes on.",
        step_time.waterfall,
    ),
    FigureKind(
        "bubble",
        "speed",
        "bubble",
        "Share of rank-time spent waiting in a training step, with what lies between spans of work "
        "(one rank waits for nobody); ticks are what equal stages must wait, (S-1)/(V·M+S-1) with "
        "V virtual stages; of zero-bubble and zbv with the measured ratio of forwards, gradients "
        "of inputs and gradients of weights.",
        scaling.bubble,
        _waits,
    ),
    FigureKind(
        "step-times",
        "speed",
        "step times",
        "Spread of the training steps after warm-up, barrier to barrier, which says nothing about "
        "how runs differ; m is the number of micro-batches. Boxes span the quartiles, whiskers 1.5 "
        "times that; every step beyond is drawn, none is dropped. The median is that of the steps "
        "of all runs together; in tables it is the mean of the runs' medians.",
        step_time.step_times,
    ),
    FigureKind(
        "memory",
        "speed",
        "peak memory of each rank",
        "The most memory that each rank used, mean and range over runs, with the most "
        "micro-batches that the layout was run with.",
        scaling.peak_memory,
    ),
    FigureKind(
        "messages",
        "speed",
        "bytes sent by each rank",
        "What each rank sends in a training step, from the shapes of tensors: outputs to the next "
        "stage, gradients to the one before, and around the ring of replicas, with the most "
        "micro-batches that the layout was run with. Chunks count as the largest one does.",
        scaling.messages,
    ),
    FigureKind(
        "loss",
        "learning",
        "training loss by layout",
        "Training loss, mean over seeds and repeats; bands are their range. Numbers are "
        "micro-batches.",
        training_curves.training_loss,
    ),
    FigureKind(
        "learning-over-time",
        "learning",
        "accuracy or loss against time",
        "Accuracy, or the loss where no accuracy was recorded, against the seconds of training "
        "steps, mean over seeds and repeats; of each layout the fastest number of micro-batches.",
        training_curves.learning_over_time,
    ),
    FigureKind(
        "copies",
        "learning",
        "loss of data-parallel copies",
        "Training loss of the sequential run against that of the data-parallel copies.",
        training_curves.replica_losses,
        _waits,
        _loss_points,
        "As figure 3 of Raffi & Dazzi 2024, whose points are crosses.",
    ),
    FigureKind(
        "framework-time",
        "frameworks",
        "time by framework",
        "Milliseconds an epoch on one device, the whole graph at once, by whose code computes the "
        "layers.",
        graph_figures.framework_time,
        _of_frameworks,
        _single_device_points,
        "Crosses are table 2 of Dearing & Wang 2021.",
    ),
    FigureKind(
        "chunk-time",
        "chunks",
        "time against chunks",
        "Seconds an epoch against the number of chunks.",
        graph_figures.chunk_time,
        lambda group: group.graphs,
        _chunk_points,
        "As figure 3 of Dearing & Wang 2021, whose points are crosses.",
    ),
    FigureKind(
        "chunk-accuracy",
        "chunks",
        "accuracy against chunks",
        "Accuracy after training against the number of chunks, mean and range over seeds.",
        graph_figures.chunk_accuracy,
        lambda group: group.graphs,
        _chunk_points,
        "As figure 4 of Dearing & Wang 2021, whose points are crosses.",
    ),
    FigureKind(
        "epoch-time",
        "sampled",
        "time of an epoch against ranks",
        "Seconds of an epoch of sampled mini-batches against the number of ranks, each with its "
        "own mini-batch, with intervals over runs.",
        sampled_figures.epoch_time,
        lambda group: group.sampled,
        _epoch_points,
        "As table 2 and figure 1 of Boca's study, whose points are crosses.",
    ),
)
