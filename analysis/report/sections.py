"""The sections of a report after the first page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.figures.draw_figures import Figures
from analysis.render.document import (
    Block,
    Bullets,
    Folded,
    Section,
    Table,
    Text,
    page_table,
    rows_table,
)
from analysis.statistics.intervals import FEWEST_STEPS, ONE_RUN
from analysis.statistics.power import CONFIDENCE
from analysis.statistics.warmup import OUTLIER_Z
from analysis.studies.study import published_studies
from analysis.summary.settings_in_words import ROW_KEYS, with_study

if TYPE_CHECKING:
    import pandas as pd


_ROWS = (*ROW_KEYS, "phase")
_TIMES = ("n", "mean_s", "median_s", "std_s", "min_s", "max_s", "samples_per_s")
_RATIOS = ("speedup", "bound", "of_bound", "efficiency", "bubble", "valid", "flags")
_COUNTS = (
    *("n", "n_effective", "cells_used", "cells", "attempts", "redone"),
    *("warmup_dropped", "profiled_dropped", "outliers"),
)
_NOISE = ("drift", "cpu_share", "steal_share", "switches_per_step", "peak_rss_mib", "startup_s")
_CORRECTED, _FRAMEWORKS, _SAMPLED = "corrected_study", "frameworks", "sampled"
_CONCLUSIONS = "boca_conclusions"
_STUDY_COLUMNS = (
    *("table", "setting", "phase", "quantity", "published", "ours", "bound", "verdict", "run"),
)
_IN_OTHER_SECTIONS = (
    *("speedup", "efficiency", "lost_time", "noise"),
    *(_FRAMEWORKS, _CONCLUSIONS, _SAMPLED, _CORRECTED),
)
_LEARNT = (
    *("train_loss", "train_accuracy", "val_accuracy", "test_loss", "test_accuracy"),
    "test_at_best_val_accuracy",
)
_METRIC = re.compile(r"(val|test)_(auc|mrr|hits@[0-9]+)")
"""How well links were predicted."""


def summary_section(summary: pd.DataFrame) -> Section:
    """The most important columns of summary.csv, training and testing."""
    rows = with_study(summary)
    blocks = (
        page_table(
            rows,
            "Seconds a mini-batch, barrier to barrier. More columns are in summary.csv",
            (*_ROWS, *_TIMES),
            keys=len(_ROWS),
        ),
        page_table(
            rows,
            "Speedup of samples a second over the baseline; efficiency is the ideal step over the "
            "measured one, bubble the share of rank-time spent waiting for other ranks (with what "
            "lies between spans of work; one rank waits for nobody)",
            (*_ROWS, *_RATIOS),
            keys=len(_ROWS),
        ),
    )
    return Section("summary", "Summary", blocks)


def speed_section(summary: pd.DataFrame, figures: Figures) -> Section:
    """How each configuration differs from its baseline, in words, and figures."""
    compared = with_study(summary[(summary["phase"] == "train") & summary["speedup"].notna()])
    compared = compared[compared["effect"].notna()] if "effect" in compared else compared.iloc[:0]
    blocks: list[Block] = []
    if len(compared):
        blocks.append(
            page_table(
                compared,
                "Training throughput against the baseline in words, an effect smaller than its "
                "interval is called so; and against the sequential run with the same micro-batches",
                (*ROW_KEYS, "effect", "speedup_from", "speedup_same_m", "note"),
                keys=len(ROW_KEYS),
            )
        )
    blocks += figures.of_section("speed")
    return Section("speed", "Speedup and efficiency", tuple(blocks))


def learning_section(summary: pd.DataFrame, figures: Figures) -> Section | None:
    """Losses, and how well was learnt; None if there are none."""
    found = [name for name in map(str, summary.columns) if _METRIC.fullmatch(name)]
    known = [name for name in (*_LEARNT, *found) if name in summary and summary[name].notna().any()]
    blocks: list[Block] = []
    if known:
        blocks.append(
            page_table(
                with_study(summary[summary["phase"] == "train"]),
                "Last losses, accuracies and ranks of links: means, with intervals where there are "
                "several seeds; repeats of one seed learn the same",
                (*ROW_KEYS, "cells_used", *known),
                keys=len(ROW_KEYS),
            )
        )
    blocks += figures.of_section("learning")
    return Section("learning", "Loss and accuracy", tuple(blocks)) if blocks else None


def frameworks_section(tables: Sequence[Table], figures: Figures) -> Section | None:
    """Our layers, PyG's and DGL's; None where one of them was measured alone."""
    blocks: list[Block] = [one for one in tables if one.name == _FRAMEWORKS]
    blocks += figures.of_section("frameworks")
    return Section("frameworks", "Ours, PyG and DGL", tuple(blocks)) if blocks else None


def chunks_section(figures: Figures) -> Section | None:
    """Figures of graphs in chunks; None for runs without graphs."""
    pictures = figures.of_section("chunks")
    return Section("chunks", "Graphs in chunks", pictures) if pictures else None


def sampled_section(tables: Sequence[Table], figures: Figures) -> Section | None:
    """Training on sampled mini-batches, which of the study's conclusions hold first; None for runs
    without any."""
    found = {one.name: one for one in tables}
    if _SAMPLED not in found:
        return None
    table = found[_SAMPLED]
    answers: list[Block] = []
    if (study := found.get(_CONCLUSIONS)) is not None:
        answers = [study, Bullets(study.notes)]
    pictures = figures.of_section("sampled")
    words = Text(
        "Sampling a mini-batch is part of its step. The last mini-batch of an epoch has the "
        "samples that are left: it counts in every mean, and is compared with no other in warm-up, "
        "outliers, drift, medians of steps and efficiency."
    )
    blocks = (*answers, *pictures, words, table, Bullets(table.notes))
    return Section("sampled", "Sampled mini-batches", blocks)


def published_section(tables: Sequence[Table]) -> Section | None:
    """Published tables next to ours; a note is under the first table with it."""
    blocks: list[Block] = []
    shown: set[str] = set()
    for one in tables:
        if one.name in _IN_OTHER_SECTIONS:
            continue
        blocks.append(one)
        fresh = tuple(note for note in one.notes if note not in shown)
        if fresh:
            blocks.append(Bullets(fresh))
        shown.update(fresh)
    if not blocks:
        return None
    folded = Folded("Each published table, with the rows of this run", tuple(blocks))
    return Section("tables", "Published tables", (folded,))


def corrected_section(tables: Sequence[Table]) -> Section | None:
    """The corrected study, a table for each published study, with its known defects."""
    blocks: list[Block] = []
    found = [one.frame for one in tables if one.name == _CORRECTED]
    if not found:
        return None
    study = found[0]
    for name, source in published_studies().items():
        rows = study[study["study"] == name]
        if rows.empty:
            continue
        blocks.append(Text(f"{source.citation}. {source.what}. {source.machine}."))
        blocks.append(page_table(rows, f"{name}: published, ours, bound, verdict", _STUDY_COLUMNS))
        if source.defects:
            blocks.append(Text("Known defects of these measurements:"))
            blocks.append(Bullets(tuple(source.defects.values())))
    return Section("corrected", "The corrected study", tuple(blocks)) if blocks else None


def timeline_section(figures: Figures) -> Section | None:
    """Timelines of measured and ideal steps; None without spans."""
    pictures = figures.of_section("timeline")
    if not pictures:
        return None
    words = Text(
        "One training step of a cell, rank by rank, and the same schedule with the same forward "
        "and backward seconds and nothing else. The bubble is waited rank-time over all "
        "rank-time, with what lies between spans; one rank waits for nobody. The traces folder has "
        "every step for chrome://tracing or ui.perfetto.dev."
    )
    return Section("timeline", "Timeline", (words, *pictures))


def statistics_section(summary: pd.DataFrame) -> Section:
    """How the numbers were computed; warm-up, outliers and noise of each configuration."""
    blocks: list[Block] = [
        Bullets(
            (
                "n counts the mini-batches of all valid repeats, without warm-up steps and "
                "without profiled steps, in which hooks measure each layer. What was counted has "
                "how many were left out: with n they add up to the steps that all ranks recorded, "
                "without those redone after a resume.",
                f"Intervals hold {CONFIDENCE:.0%} and come from how runs differ: Student's t on "
                "the logarithms of the runs' means or medians. Steps of one run share its "
                f"placement and its minute, so {ONE_RUN}: it has no interval, and neither have "
                f"fewer than {FEWEST_STEPS} steps; standard deviation, lowest and highest are of "
                "steps. Where steps are few and skewed to the right, so is their mean, and its "
                "upper bound reaches further (Johnson 1978).",
                "A mean is that of the runs' means, and a median the mean of the runs' medians. "
                "The figure of step times marks another: the median of the steps of all these runs "
                "together, of equal samples.",
                "A speedup is a ratio of samples a second. Repeats are measured alternately, and "
                "runs of one repeat are a pair where the nodes of one are among those of the "
                "other, as in all blocks of submit --paired: the interval is t on the logarithms "
                "of the pairs' ratios. With fewer than three pairs, or where most runs have no "
                "partner, "
                "runs are compared unpaired (Welch); speedup_from says which.",
                "Warm-up is dropped where the run marked it, and where the first steps are slower "
                "than what follows (MSER): a fifth of a run's steps at most.",
                f"Outliers, beyond {OUTLIER_Z:g} robust standard deviations from the median, are "
                "counted and shown in figures, and never dropped.",
                "Of several attempts at a cell the newest valid one counts.",
            )
        )
    ]
    if not summary.empty:
        rows = with_study(summary)
        blocks += [
            page_table(rows, "What was counted", (*_ROWS, *_COUNTS), keys=len(_ROWS)),
            page_table(
                rows,
                "The noise of the machine: processor time over busy time, steal over wall time, "
                "drift of the last third against the first",
                (*_ROWS, *_NOISE),
                keys=len(_ROWS),
            ),
        ]
    return Section("statistics", "Statistics", tuple(blocks))


def left_out_section(figures: Figures) -> Section | None:
    """The figures that were left out, and why; None if there are none."""
    if not figures.left_out:
        return None
    return Section(
        "left-out",
        "Figures left out",
        (
            rows_table(
                "Figures that this run has no data for", ("figure", "reason"), figures.left_out
            ),
        ),
    )
