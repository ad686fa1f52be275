"""The sections of a report after the first page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.figures.catalog import Figures
from analysis.papers.published_data import published_studies
from analysis.render.document import Block, Bullets, Picture, Section, Text, frame_table, rows_table
from analysis.stats.intervals import FEWEST_STEPS, ONE_RUN
from analysis.stats.step_times import OUTLIER_Z
from analysis.summary.variant_columns import with_variant_columns
from gnnhpc.core.student_t import CONFIDENCE

if TYPE_CHECKING:
    import pandas as pd

    from analysis.loading.run import Run
    from analysis.render.named_table import NamedTable

_SUMMARY_COLUMNS = {
    "model": "model",
    "data": "data",
    "layout": "layout",
    "microbatches": "micro-batches",
    "phase": "phase",
    "n": "n",
    "mean_s": "mean s",
    "mean_low": "mean low",
    "mean_high": "mean high",
    "speedup": "speedup",
    "speedup_low": "low",
    "speedup_high": "high",
    "bound": "bound",
    "efficiency": "efficiency",
    "bubble": "bubble",
    "valid": "valid",
    "flags": "flags",
    "samples_per_s": "samples/s",
    "median_s": "median s",
    "std_s": "std s",
    "min_s": "min s",
    "max_s": "max s",
}
_CORRECTED = "corrected_study"
_STUDY_COLUMNS = {
    "table": "table",
    "setting": "setting",
    "phase": "phase",
    "quantity": "quantity",
    "published": "published",
    "ours": "ours",
    "ours_low": "low",
    "ours_high": "high",
    "bound": "bound",
    "verdict": "verdict",
    "run": "our run",
}
_IN_OTHER_SECTIONS = ("speedup", "efficiency", "noise", _CORRECTED)
_LEARNING_COLUMNS = {
    "train_loss": "training loss",
    "train_accuracy": "training accuracy",
    "val_accuracy": "validation accuracy",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
}


def summary_section(summary: pd.DataFrame) -> Section:
    """The most important columns of summary.csv."""
    blocks: list[Block] = [
        frame_table(
            summary,
            "Seconds a mini-batch, barrier to barrier; speedup of samples a second over the "
            "baseline, with its interval; efficiency is the ideal step over the measured one. "
            "More columns are in summary.csv",
            with_variant_columns(summary, _SUMMARY_COLUMNS),
        )
    ]
    return Section("summary", "Summary", tuple(blocks))


def speed_section(summary: pd.DataFrame, figures: Figures) -> Section:
    """Speedups and efficiency: sentences, a table and figures."""
    train = summary[(summary["phase"] == "train") & summary["speedup"].notna()]
    compared = train[train["effect"].notna()] if "effect" in train else train.iloc[:0]
    blocks: list[Block] = []
    if len(compared):
        blocks.append(
            Text(
                f"{len(compared)} configurations are compared with their baseline "
                f"({_distinct_values(compared['baseline'])}). " + _decided(compared["effect"])
            )
        )
        blocks.append(
            frame_table(
                compared,
                "Training throughput against the sequential run, and against the sequential run "
                "with the same micro-batches; an effect smaller than its interval is called so",
                with_variant_columns(
                    compared,
                    {
                        "model": "model",
                        "data": "data",
                        "layout": "layout",
                        "microbatches": "micro-batches",
                        "effect": "effect",
                        "speedup_from": "interval of",
                        "speedup_same_m": "speedup, same micro-batches",
                        "speedup_same_m_low": "low",
                        "speedup_same_m_high": "high",
                        "bound": "bound",
                        "efficiency": "efficiency",
                        "n": "n",
                        "note": "note",
                    },
                ),
            )
        )
    else:
        blocks.append(Text("No configuration has a valid baseline to be compared with."))
    blocks += figures.pictures_of("speedup", "efficiency", "bubble", "step-times")
    return Section("speed", "Speedup and efficiency", tuple(blocks))


def learning_section(summary: pd.DataFrame, figures: Figures) -> Section | None:
    """Losses and accuracies; None if there are none."""
    known = {
        name: words
        for name, words in _LEARNING_COLUMNS.items()
        if name in summary and summary[name].notna().any()
    }
    blocks: list[Block] = []
    if known:
        keys = {
            name: _SUMMARY_COLUMNS[name] for name in ("model", "data", "layout", "microbatches")
        }
        blocks.append(
            frame_table(
                summary[summary["phase"] == "train"],
                "Last losses and accuracies, mean over seeds and repeats",
                with_variant_columns(summary, {**keys, "cells_used": "cells", **known}),
            )
        )
    blocks += figures.pictures_of("loss", "copies")
    return Section("learning", "Loss and accuracy", tuple(blocks)) if blocks else None


def chunks_section(figures: Figures) -> Section | None:
    """Figures of graphs in chunks; None for runs without graphs."""
    pictures: list[Picture] = figures.pictures_of("chunk-time", "chunk-accuracy", "chunk-loss")
    return Section("chunks", "Graphs in chunks", tuple(pictures)) if pictures else None


def published_section(tables: Sequence[NamedTable]) -> Section | None:
    """The published tables with ours beside them; a note is under the first table with it."""
    blocks: list[Block] = []
    shown: set[str] = set()
    for one in tables:
        if one.name in _IN_OTHER_SECTIONS:
            continue
        blocks.append(frame_table(one.frame, one.title))
        fresh = tuple(note for note in one.notes if note not in shown)
        if fresh:
            blocks.append(Bullets(fresh))
        shown.update(fresh)
    return Section("tables", "Published tables", tuple(blocks)) if blocks else None


def corrected_section(tables: Sequence[NamedTable]) -> Section | None:
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
        blocks.append(frame_table(rows, f"{name}: published, ours, bound, verdict", _STUDY_COLUMNS))
        blocks.append(Text("Known defects of these measurements:"))
        blocks.append(Bullets(tuple(source.defects.values())))
    return Section("corrected", "The corrected study", tuple(blocks)) if blocks else None


def timeline_section(figures: Figures) -> Section | None:
    """Timelines of measured and ideal steps; None without spans."""
    pictures = figures.pictures_of("timeline")
    if not pictures:
        return None
    words = Text(
        "One training step of a cell, rank by rank, and the same schedule with the same forward "
        "and backward seconds and nothing else. The bubble is waited rank-time over all "
        "rank-time. The traces folder has every step for chrome://tracing or ui.perfetto.dev."
    )
    return Section("timeline", "Timeline", (words, *pictures))


def statistics_section(run: Run, summary: pd.DataFrame) -> Section:
    """How the numbers were computed; warm-up, outliers and noise of each configuration."""
    blocks: list[Block] = [
        Bullets(
            (
                "n counts the mini-batches of all valid repeats, after warm-up.",
                f"Intervals hold {CONFIDENCE:.0%} and come from how runs differ: Student's t on "
                "the logarithms of the runs' means or medians. Steps of one run share its "
                f"placement and its minute, so {ONE_RUN}: it has no interval, and neither have "
                f"fewer than {FEWEST_STEPS} steps; standard deviation, lowest and highest are of "
                "steps.",
                "A speedup is a ratio of samples a second. Repeats are measured in turn, so a "
                "repeat is a pair on the same machines: the interval is t on the logarithms of the "
                "pairs' ratios. With fewer than three pairs, or where most runs have no partner, "
                "runs are compared unpaired (Welch); speedup_from says which.",
                "Warm-up is dropped where the run marked it, and where the first steps are slower "
                "than what follows (MSER): a fifth of a run's steps at most.",
                f"Outliers, beyond {OUTLIER_Z:g} robust standard deviations from the median, are "
                "counted and drawn, and never dropped.",
                "Of several attempts at a cell the newest valid one counts.",
            )
        )
    ]
    if not summary.empty:
        keys = {
            name: _SUMMARY_COLUMNS[name] for name in ("model", "data", "layout", "microbatches")
        }
        blocks.append(
            frame_table(
                summary,
                "What was counted, and the noise of the machine: processor time over busy time, "
                "steal over wall time, drift of the last third against the first",
                with_variant_columns(
                    summary,
                    {
                        **keys,
                        "phase": "phase",
                        "n": "n",
                        "n_effective": "n, independent",
                        "cells_used": "cells used",
                        "cells": "cells",
                        "attempts": "attempts",
                        "redone": "steps redone",
                        "warmup_dropped": "warm-up steps",
                        "outliers": "outliers",
                        "drift": "drift",
                        "cpu_share": "CPU share",
                        "steal_share": "steal share",
                        "switches_per_step": "switches a step",
                        "peak_rss_mib": "peak MiB",
                        "startup_s": "start-up s",
                    },
                ),
            )
        )
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


def _decided(effects: pd.Series[str]) -> str:
    """How many configurations differ from their baseline, in sentences."""
    undecided = int(effects.str.startswith("no difference").sum())
    unknown = int(effects.str.contains("no interval").sum())
    parts = []
    if undecided:
        parts.append(f"{undecided} of them show no difference: their interval contains 1.")
    if unknown:
        parts.append(f"{unknown} of them have no interval, so nothing is said of a difference.")
    return " ".join(parts) or "Each differs from it by more than its interval."


def _distinct_values(values: pd.Series[str]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def without_none(*sections: Section | None) -> Iterator[Section]:
    """The sections that are not None."""
    yield from (section for section in sections if section is not None)
