"""The list of all figures; draws those that a run has data for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.figures import (
    frameworks,
    gantt,
    graph_chunks,
    loss_curves,
    sampled,
    speedup,
    waterfall,
)
from analysis.figures.draw_in_parallel import run_in_parallel
from analysis.figures.hover import marks_of
from analysis.figures.origin import Origin, origin_of
from analysis.figures.panels import MAX_PANELS
from analysis.figures.step_timeline import cells_with_spans, measured_timeline
from analysis.figures.studies import Study, find_studies
from analysis.figures.style import COLUMN_IN, load_backends, save_figure
from analysis.render.document import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.load.run_data import RunData as Run

MAX_STUDIES = 8
MAX_TIMELINES = 12
_CROSSES = "Crosses are the published points; the corrected study lists their known defects."


@dataclass(frozen=True)
class PublishedPoints:
    """Published points that are drawn beside ours; None where there are none."""

    loss_curve: pd.DataFrame | None = None
    """Raffi & Dazzi 2024, figure 3: step, seq, dp_copy0, dp_copy1."""
    chunks: pd.DataFrame | None = None
    """Dearing & Wang 2021, table 3, four GPUs with the graph rebuilt: chunks, avg_epoch_s, ..."""
    single_device: pd.DataFrame | None = None
    """Dearing & Wang 2021, table 2: compute, framework, dataset, avg_epoch_ms, test_acc."""

    sampled: pd.DataFrame | None = None
    """Boca, table 2: model, library, ranks, batch_size, epoch_s."""

    def for_copies(self, study: Study) -> pd.DataFrame | None:
        """The published loss curve, for a study of the same data."""
        return self.loss_curve if study.data == "cifar10" else None

    def for_chunks(self, study: Study) -> pd.DataFrame | None:
        """The published points of chunks, for a study of the same model and data."""
        return self.chunks if (study.model, study.data) == ("gat", "pubmed") else None

    def for_sampled(self, study: Study) -> pd.DataFrame | None:
        """The published seconds of an epoch, for a study of the same model and data."""
        if self.sampled is None or study.data != "reddit":
            return None
        mine = self.sampled[self.sampled["model"] == study.model]
        return None if mine.empty else mine

    def for_frameworks(self, study: Study) -> pd.DataFrame | None:
        """The published points of one device, for a study of the same model and data."""
        points = self.single_device
        if points is None or study.model != "gat":
            return None
        mine = points[points["dataset"].str.lower() == study.data]
        return None if mine.empty else mine


def _any_study(_: Study) -> bool:
    return True


def _of_microbatches(study: Study) -> bool:
    """Not of sampled ranks with a mini-batch each, which `epoch-speedup` draws against ranks."""
    cells = study.cells
    alone = (cells["stages"] == 1) & (cells["microbatches"] == 1)
    return not (_of_sampled(study) and bool((alone & cells["sampler"].notna()).all()))


def _of_graphs(study: Study) -> bool:
    return study.graphs


def _of_frameworks(study: Study) -> bool:
    return study.graphs and study.cells["implementation"].nunique() > 1


def _of_sampled(study: Study) -> bool:
    return "sampler" in study.cells and bool(study.cells["sampler"].notna().any())


def _no_published_points(_: PublishedPoints, __: Study) -> None:
    return None


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure: its name, title, caption, and the function that draws it."""

    name: str
    title: str
    caption: str
    draw: Callable[[Study, pd.DataFrame | None], Figure | str]
    """Returns the figure (with published points if given), or why there is none."""
    published: Callable[[PublishedPoints, Study], pd.DataFrame | None] = _no_published_points
    drawn_of: Callable[[Study], bool] = _any_study
    """Whether a study can have this figure at all."""


FIGURE_KINDS = (
    FigureKind(
        "speedup",
        "speedup",
        "Speedup over the baseline that the axis names (samples a second, training), with "
        "intervals over runs (an arrow: it goes on); ticks are the bound, R·S·M/(M+(S-1)/V) over "
        "the baseline's, of V parts a stage (zero-bubble, zbv: by order). Hollow: not valid, "
        "above it without a reason in its layers' seconds.",
        lambda study, _: speedup.speedup(study),
        drawn_of=_of_microbatches,
    ),
    FigureKind(
        "efficiency",
        "efficiency",
        "Ideal step time (the schedule with the measured forward and backward seconds of each "
        "stage, and nothing else) over the measured step time.",
        lambda study, _: speedup.efficiency(study),
        drawn_of=_of_microbatches,
    ),
    FigureKind(
        "bubble",
        "bubble",
        "Share of rank-time spent waiting in a training step, with what lies between spans of work "
        "(one rank waits for nobody); ticks are what equal stages must "
        "wait, (S-1)/(V·M+S-1) of V parts each; of zero-bubble and zbv with the measured ratio of "
        "forwards, gradients of inputs and gradients of weights.",
        lambda study, _: speedup.bubble(study),
        drawn_of=_of_microbatches,
    ),
    FigureKind(
        "waterfall",
        "where a step loses time",
        "From the best sequential step on as many ranks that lose nothing (linear) to the measured "
        "step, in parts that add up: the schedule's bubble, up to the bound; recomputed forwards; "
        "micro-batches, which cost a sequential run too; contention: passes slower when ranks run "
        "side by side; imbalance of stages; other waiting, as for transfers, with what lies "
        "between spans; all-reduce; the rest. Pale bars are gains. An arrow means that the "
        "interval goes on.",
        lambda study, _: waterfall.waterfall(study),
    ),
    FigureKind(
        "step-times",
        "step times",
        "Spread of the steps after warm-up, barrier to barrier, which says nothing about how runs "
        "differ. Boxes span the quartiles, whiskers 1.5 times that; every step beyond is drawn, "
        "none is dropped. Fewer than five steps are points. The median is that of the steps of all "
        "runs together; in tables it is the mean of the runs' medians.",
        lambda study, _: speedup.step_times(study),
    ),
    FigureKind(
        "loss",
        "training loss by layout",
        "Training loss, mean over seeds and repeats; bands are their range. Numbers are "
        "micro-batches.",
        lambda study, _: loss_curves.training_loss(study),
    ),
    FigureKind(
        "copies",
        "loss of data-parallel copies",
        "Training loss of the sequential run against that of the data-parallel copies, as "
        "figure 3 of Raffi & Dazzi 2024.",
        loss_curves.replica_losses,
        PublishedPoints.for_copies,
        drawn_of=_of_microbatches,
    ),
    FigureKind(
        "framework-time",
        "time by framework",
        "Milliseconds an epoch on one device, the whole graph at once, by whose code computes the "
        "layers, as Dearing & Wang 2021 compare compute and framework.",
        frameworks.framework_time,
        PublishedPoints.for_frameworks,
        drawn_of=_of_frameworks,
    ),
    FigureKind(
        "framework-accuracy",
        "accuracy by framework",
        "Accuracy of test nodes on one device, the whole graph at once, by whose code computes the "
        "layers: mean and range over seeds, as Dearing & Wang 2021 compare frameworks.",
        frameworks.framework_accuracy,
        PublishedPoints.for_frameworks,
        drawn_of=_of_frameworks,
    ),
    FigureKind(
        "chunk-time",
        "time against chunks",
        "Seconds an epoch against the number of chunks, as figure 3 of Dearing & Wang 2021.",
        graph_chunks.chunk_time,
        PublishedPoints.for_chunks,
        drawn_of=_of_graphs,
    ),
    FigureKind(
        "chunk-accuracy",
        "accuracy against chunks",
        "Accuracy after training against the number of chunks, mean and range over seeds, as "
        "figure 4 of Dearing & Wang 2021.",
        graph_chunks.chunk_accuracy,
        PublishedPoints.for_chunks,
        drawn_of=_of_graphs,
    ),
    FigureKind(
        "chunk-loss",
        "what chunks lose or repeat",
        "Share of edges that are kept, and nodes and edges computed for each of the graph.",
        lambda study, _: graph_chunks.chunk_losses(study),
        drawn_of=_of_graphs,
    ),
    FigureKind(
        "step-parts",
        "where a step's time goes",
        "Milliseconds of a training step: waiting for its mini-batch, divided as drawing and "
        "copying features divide its making, or where ranks copy features themselves into that and "
        "waiting for the loader; computing; averaging gradients; and the rest, such as what lies "
        "between spans of work. Of several ranks it is with waiting for one another, of which "
        "records do not tell it apart; one rank waits for nobody. Bars are means, with intervals "
        "of the step over runs (an arrow: it goes on).",
        lambda study, _: sampled.step_parts(study),
        drawn_of=_of_sampled,
    ),
    FigureKind(
        "epoch-time",
        "time of an epoch against ranks",
        "Seconds of an epoch of sampled mini-batches against the number of ranks, each with a "
        "mini-batch of its own, as table 2 and figure 1 of Boca's study, with intervals over runs.",
        sampled.epoch_time,
        PublishedPoints.for_sampled,
        drawn_of=_of_sampled,
    ),
    FigureKind(
        "epoch-speedup",
        "speedup of an epoch against ranks",
        "Speedup of an epoch (samples a second) over the baseline of the same sampler, semantics, "
        "fan-outs, workers and mini-batch a rank, with intervals over runs (an arrow: it goes on), "
        "and the ideal.",
        lambda study, _: sampled.epoch_speedup(study),
        drawn_of=_of_sampled,
    ),
)


LeftOut = tuple[str, str]
"""A figure that was not drawn, and the reason."""


@dataclass(frozen=True)
class Drawn:
    kind: str
    study: str
    picture: Picture


@dataclass(frozen=True)
class Figures:
    """The figures that were drawn, and those that were left out."""

    drawn: tuple[Drawn, ...] = ()
    left_out: tuple[LeftOut, ...] = field(default=())

    def pictures_of(self, *kinds: str) -> list[Picture]:
        """The pictures of these kinds, in the order of `kinds`."""
        return [one.picture for kind in kinds for one in self.drawn if one.kind == kind]


def make_figures(
    run: Run, summary: pd.DataFrame, folder: Path, published: PublishedPoints | None = None
) -> Figures:
    """Draw every figure that the run has data for into `folder`, as PNG and PDF.

    A figure whose drawing fails is left out, with the error as its reason.
    """
    found = find_studies(run, summary)
    points = published or PublishedPoints()
    tasks: list[Callable[[], Drawn | LeftOut]] = [
        partial(_draw_study_figure, run, study, kind, kind.published(points, study), folder)
        for study in found[:MAX_STUDIES]
        for kind in FIGURE_KINDS
        if kind.drawn_of(study)
    ]
    cells, not_shown = timeline_cells(run)
    tasks += [partial(_draw_timeline, run, cell, folder) for cell in cells]
    load_backends()
    made = run_in_parallel(tasks)
    return Figures(
        tuple(one for one in made if isinstance(one, Drawn)),
        (
            *(one for one in made if not isinstance(one, Drawn)),
            *_studies_not_drawn(found),
            *not_shown,
        ),
    )


def _draw_study_figure(
    run: Run, study: Study, kind: FigureKind, points: pd.DataFrame | None, folder: Path
) -> Drawn | LeftOut:
    title = f"{study.title}: {kind.title}"
    try:
        figure = kind.draw(study, points)
        if isinstance(figure, str):
            return title, figure
        caption = kind.caption if points is None else f"{kind.caption} {_CROSSES}"
        name = f"{kind.name}-{study.slug}"
        origin = origin_of(run, study.cells["cell"], name, study.baseline)
        picture = _save_picture(figure, folder, name, study.title, kind.title, caption, origin)
    except Exception as error:
        return title, _failed(error)
    return Drawn(kind.name, study.slug, picture)


def _failed(error: Exception) -> str:
    """The reason that a report gives; an OSError is raised, as the next figure meets it too."""
    if isinstance(error, OSError):
        raise error
    return f"drawing it failed: {type(error).__name__}: {error}"


def _studies_not_drawn(found: Sequence[Study]) -> Iterator[LeftOut]:
    for study in found:
        panels = list(study.panels(study.summary))
        if len(panels) > MAX_PANELS:
            left = f"{len(panels) - MAX_PANELS} of {len(panels)} variants"
            yield f"{study.title}: {left}", "no room for them"
    for study in found[MAX_STUDIES:]:
        yield study.title, f"only the first {MAX_STUDIES} pairs of model and data are drawn"


def _save_picture(
    figure: Figure,
    folder: Path,
    name: str,
    where: str,
    title: str,
    caption: str,
    origin: Origin,
) -> Picture:
    png, pdf = save_figure(figure, folder, name, origin)
    wide = figure.get_figwidth() > COLUMN_IN
    return Picture(
        f"{where}. {caption}", f"{where}: {title}", png, pdf, wide=wide, marks=marks_of(figure)
    )


def timeline_cells(run: Run) -> tuple[list[str], list[LeftOut]]:
    """The cells whose timelines are drawn, one of each setting; and those left out."""
    cells = run.cells[
        run.cells["cell"].isin(cells_with_spans(run)) & run.cells["counts"].astype(bool)
    ]
    if cells.empty:
        return [], [("timeline", "no valid cell wrote spans; set `spans: true` in the sweep")]
    left_out: list[LeftOut] = []
    drawn_once = ["model", "data", "layout", "schedule", "virtual_stages"]
    chosen = cells.drop_duplicates([*drawn_once, "microbatches"])
    if len(chosen) > MAX_TIMELINES:
        # Of each layout and schedule the most micro-batches first, then a second one of each;
        # pipelines first, models and data in turn.
        chosen = chosen.sort_values("microbatches", ascending=False, kind="stable")
        chosen["turn"] = chosen.groupby(drawn_once, observed=True).cumcount()
        chosen["alone"] = chosen["stages"] == 1
        chosen = chosen.sort_values(["turn", "alone"], kind="stable")
        chosen["place"] = chosen.groupby(["model", "data"], observed=True).cumcount()
        chosen = chosen.sort_values(["turn", "alone", "place"], kind="stable")
        left_out.append(
            (
                f"timelines of {len(chosen) - MAX_TIMELINES} more configurations",
                f"at most {MAX_TIMELINES} are drawn; `python -m analysis report RUN --only "
                "timeline-CELL` draws any other",
            )
        )
    return [str(cell) for cell in chosen["cell"].iloc[:MAX_TIMELINES]], left_out


def _draw_timeline(run: Run, cell: str, folder: Path) -> Drawn | LeftOut:
    try:
        timeline = measured_timeline(run, cell)
        caption = gantt.timeline_caption(timeline)
        name = f"timeline-{cell}"
        figure, origin = gantt.draw_timeline(timeline), origin_of(run, [cell], name)
        picture = _save_picture(figure, folder, name, cell, "timeline", caption, origin)
    except Exception as error:
        return f"{cell}: timeline", _failed(error)
    return Drawn("timeline", cell, picture)
