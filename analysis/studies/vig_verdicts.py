"""Verdicts on Raffi and Dazzi's tables of ViG: published, ours, the bound, known misprints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.load.run_data import RunData as Run
from analysis.statistics.warmup import step_statistics
from analysis.studies.study import (
    LOG_FOLDER,
    matches_published_digits,
    published_studies,
    read_published,
    read_published_text,
)
from analysis.studies.vig_tables_beside_ours import layer_group_rows, run_label, vig_settings
from analysis.summary.split_backward import rows_with_split_backward
from gnnhpc.core.bound_and_bubble import bound

_PHASE_OF_LOG = {"train": 0, "test": 1}


def vig_verdict_rows(summary: pd.DataFrame, run: Run) -> Iterator[dict[str, Any]]:
    """Rows of the corrected study for tables 1 to 9; `summary` is over the sequential run."""
    names = vig_settings(summary)
    yield from _sequential(summary, names)
    yield from _shares(run, summary, names)
    yield from _speedups(summary, names)
    yield from _misprints()


def _sequential(summary: pd.DataFrame, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Table 1: seconds of another machine, shown beside ours and not compared."""
    printed = read_published("raffi_tables")
    for _, row in printed[printed["table"] == 1].iterrows():
        common = {
            "study": "raffi",
            "table": "1",
            "model": "vig",
            "setting": "seq, batch 1000",
            "phase": row["phase"],
            "quantity": "mean_s",
            "published": row["mean_s"],
            "verdict": "Seconds of another machine: not compared",
        }
        measured = _measured(summary, "seq", 1, str(row["phase"]))
        for _, own in measured.iterrows():
            yield {
                **common,
                "ours": own["mean_s"],
                "ours_low": own["mean_low"],
                "ours_high": own["mean_high"],
                "run": run_label(own, names).removeprefix("ours: "),
            }
        if measured.empty:
            yield common


def _shares(run: Run, summary: pd.DataFrame, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Tables 2 and 3: all blocks, or the readout, as a share of the sequential step."""
    printed = {
        (str(row["layout"]), str(row["phase"])): float(row["mean_s"])
        for _, row in read_published("raffi_tables").iloc[:6].iterrows()
    }
    for table, kind, count in (("2", "block", 8), ("3", "readout", 1)):
        ours = list(layer_group_rows(run, kind, names))
        for phase in ("train", "test"):
            way = "forward and backward" if phase == "train" else "forward"
            published = count * printed[kind, phase] / printed["seq", phase]
            common = {
                "study": "raffi",
                "table": table,
                "model": "vig",
                "setting": f"{count} x {kind}, sequential",
                "phase": phase,
                "quantity": "share of the step",
                "published": published,
                "bound": 1.0,
                "verdict": _share_verdict(kind, phase),
            }
            steps = _measured(summary, "seq", 1, phase)
            whole = {run_label(row, names): float(row["mean_s"]) for _, row in steps.iterrows()}
            measured = [r for r in ours if (r["phase"], r["note"]) == (phase, way)]
            measured = [r for r in measured if r["source"] in whole]
            for own in measured:
                step = whole[own["source"]] / own["groups"]
                many = "" if own["groups"] == count else f", {own['groups']} of them"
                yield {
                    **common,
                    "ours": own["mean_s"] / step,
                    "ours_low": own["mean_low"] and own["mean_low"] / step,
                    "ours_high": own["mean_high"] and own["mean_high"] / step,
                    "run": own["source"].removeprefix("ours: ") + many,
                }
            if not measured:
                yield common


def _share_verdict(kind: str, phase: str) -> str:
    if kind == "block" and phase == "train":
        return "Published is less than half of the step that it makes up: forward only"
    return (
        "The published parts add up to the published step"
        if kind == "block"
        else "A small part of the step"
    )


def _speedups(summary: pd.DataFrame, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Speedups of samples a second from tables 4 to 9 over table 1."""
    printed = read_published("raffi_tables")
    alone = printed[printed["layout"] == "seq"].set_index("phase")["mean_s"]
    for _, row in printed[printed["stages"] * printed["replicas"] > 1].iterrows():
        replicas, stages = int(row["replicas"]), int(row["stages"])
        microbatches, phase = int(row["microbatches"]), str(row["phase"])
        bound_value = bound(replicas, stages, microbatches)
        published = replicas * float(alone[phase]) / float(row["mean_s"])
        common = {
            "study": "raffi",
            "table": str(row["table"]),
            "model": "vig",
            "setting": f"{row['layout']}, {microbatches} micro-batches",
            "phase": phase,
            "quantity": "speedup",
            "published": published,
            "bound": bound_value,
        }
        verdict = _published_verdict(published, bound_value, stages, phase)
        measured = _measured(summary, str(row["layout"]), microbatches, phase)
        for _, own in measured.iterrows():
            yield {
                **common,
                "ours": own["speedup"],
                "ours_low": own["speedup_low"],
                "ours_high": own["speedup_high"],
                "run": run_label(own, names).removeprefix("ours: "),
                "verdict": f"{verdict}. {_our_verdict(own, bound_value)}",
            }
        if measured.empty:
            yield {**common, "verdict": verdict}


def _measured(summary: pd.DataFrame, layout: str, microbatches: int, phase: str) -> pd.DataFrame:
    """Of one part a stage and backwards whole, as the study has them and its bound is for."""
    return summary[
        (summary["model"] == "vig")
        & (summary["layout"] == layout)
        & (summary["microbatches"] == microbatches)
        & (summary["phase"] == phase)
        & (summary["virtual_stages"] == 1)
        & ~rows_with_split_backward(summary)
        & summary["speedup"].notna()
    ]


def _published_verdict(published: float, bound_value: float, stages: int, phase: str) -> str:
    if published > bound_value:
        reason = (
            "gradients did not cross stage boundaries"
            if phase == "train"
            else "only a slower sequential run can explain it, and none is shown"
        )
        return f"Published is above the bound: {reason}"
    if stages == 4:
        return "Published is slower than two stages: the cut was 6/2/2/2, not 2/2/2/2"
    if phase == "test":
        return "Published is within the bound"
    return "Published is within the bound, of runs whose gradients did not cross stage boundaries"


def _our_verdict(own: pd.Series[Any], bound_value: float) -> str:
    flags = str(own["flags"]).split(";")
    if "above-bound-unexplained" in flags:
        return "Ours is above the bound, and layer seconds do not explain it: not valid"
    if "above-bound" in flags:
        return f"Ours is above the bound, and layer seconds explain it: {own['note']}"
    if own["speedup"] > bound_value:
        if pd.isna(own["speedup_low"]):
            return f"Ours is above the bound; no interval: {own['speedup_from']}"
        return "Ours is above the bound by less than its interval"
    return "Ours is within the bound"


def _misprints() -> Iterator[dict[str, Any]]:
    """Published statistics that the author's own logs contradict."""
    printed = read_published_text("raffi_tables")
    for name, table in published_studies()["raffi"].logs.items():
        log = pd.read_csv(LOG_FOLDER / name)
        for _, row in printed[printed["table"] == str(table)].iterrows():
            seconds = log.loc[log["phase"] == _PHASE_OF_LOG[row["phase"]], "batch_time(s)"]
            for quantity, value in step_statistics(seconds.to_numpy()).items():
                if not matches_published_digits(value, row[quantity]):
                    yield {
                        "study": "raffi",
                        "table": str(table),
                        "model": "vig",
                        "setting": f"{row['layout']}, {row['microbatches']} micro-batches",
                        "phase": row["phase"],
                        "quantity": quantity,
                        "published": float(row[quantity]),
                        "verdict": f"Misprint: the author's log {name} has {value:.4g}",
                    }
