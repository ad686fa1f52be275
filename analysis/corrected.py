"""The corrected study: for each published table what was printed, ours, the bound, a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from analysis.other_studies import boca_table, gat_rows, torchgpipe_table
from analysis.published import LOGS, read, read_printed, same_as_printed, sources
from analysis.raffi import source_label
from gnnhpc.schedule import bound

COLUMNS = [
    "study",
    "table",
    "model",
    "setting",
    "phase",
    "quantity",
    "published",
    "ours",
    "ours_low",
    "ours_high",
    "bound",
    "run",
    "verdict",
]
_PHASE_OF_LOG = {"train": 0, "test": 1}


def corrected_study(summary: pd.DataFrame) -> pd.DataFrame:
    """One row a published number that says something about speed or learning.

    `ours` is empty where this run has no such cells; a setting that it measured in several ways
    (data, batch size, implementation) has a row for each, told apart by `run`.
    """
    rows = [
        *_raffi_speedups(summary),
        *_raffi_misprints(),
        *_dearing(summary),
        *_boca(),
        *_torchgpipe(),
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _raffi_speedups(summary: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Speedups of samples a second from tables 4 to 9 over table 1."""
    printed = read("raffi_tables")
    alone = printed[printed["layout"] == "seq"].set_index("phase")["mean_s"]
    for _, row in printed[printed["stages"] * printed["replicas"] > 1].iterrows():
        replicas, stages = int(row["replicas"]), int(row["stages"])
        microbatches, phase = int(row["microbatches"]), str(row["phase"])
        most = bound(replicas, stages, microbatches)
        published = replicas * float(alone[phase]) / float(row["mean_s"])
        common = {
            "study": "raffi",
            "table": str(row["table"]),
            "model": "vig",
            "setting": f"{row['layout']}, {microbatches} micro-batches",
            "phase": phase,
            "quantity": "speedup",
            "published": published,
            "bound": most,
        }
        verdict = _published_verdict(published, most, stages, phase)
        mine = _measured(summary, str(row["layout"]), microbatches, phase)
        for _, own in mine.iterrows():
            yield {
                **common,
                "ours": own["speedup"],
                "ours_low": own["speedup_low"],
                "ours_high": own["speedup_high"],
                "run": source_label(own).removeprefix("ours: "),
                "verdict": f"{verdict}. {_our_verdict(own, most)}",
            }
        if mine.empty:
            yield {**common, "verdict": verdict}


def _measured(summary: pd.DataFrame, layout: str, microbatches: int, phase: str) -> pd.DataFrame:
    return summary[
        (summary["model"] == "vig")
        & (summary["layout"] == layout)
        & (summary["microbatches"] == microbatches)
        & (summary["phase"] == phase)
        & summary["speedup"].notna()
    ]


def _published_verdict(published: float, most: float, stages: int, phase: str) -> str:
    if published > most:
        reason = (
            "gradients did not cross stage boundaries"
            if phase == "train"
            else "without gradients only a dearer sequential run can give it; not shown which"
        )
        return f"Published is above the bound: {reason}"
    if stages == 4:
        return "Published is slower than two stages: the cut was 6/2/2/2, not 2/2/2/2"
    return "Published is within the bound, of runs whose gradients did not cross stage boundaries"


def _our_verdict(own: pd.Series[Any], most: float) -> str:
    flags = str(own["flags"]).split(";")
    if "above-bound-unexplained" in flags:
        return "Ours is above the bound without a reason found: not to be believed"
    if "above-bound" in flags:
        return f"Ours is above the bound, with its reason: {own['note']}"
    if own["speedup"] > most:
        return "Ours is above the bound by less than its interval"
    return "Ours is within the bound"


def _raffi_misprints() -> Iterator[dict[str, Any]]:
    """Printed statistics that the author's own logs contradict."""
    printed = read_printed("raffi_tables")
    for name, table in sources()["raffi"].logs.items():
        log = pd.read_csv(LOGS / name)
        for _, row in printed[printed["table"] == str(table)].iterrows():
            seconds = log.loc[log["phase"] == _PHASE_OF_LOG[row["phase"]], "batch_time(s)"]
            for quantity, value in step_statistics(seconds.to_numpy()).items():
                if not same_as_printed(value, row[quantity]):
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


def step_statistics(seconds: NDArray[Any]) -> dict[str, float]:
    """What Raffi's tables print; his standard deviation is the sample's (n - 1)."""
    return {
        "mean_s": float(seconds.mean()),
        "std_s": float(seconds.std(ddof=1)) if seconds.size > 1 else float("nan"),
        "min_s": float(seconds.min()),
        "max_s": float(seconds.max()),
        "n": float(seconds.size),
    }


def _dearing(summary: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Validation accuracy by chunks on PubMed; ours on every data set with as many chunks."""
    ours = gat_rows(summary)
    chunks = read("dearing_table3_pubmed")
    for _, row in chunks[chunks["rebuild"] == "yes"].iterrows():
        count = int(row["chunks"])
        common = {
            "study": "dearing",
            "table": "3",
            "model": "gat",
            "setting": f"{count} chunks, pubmed, {row['framework']} on 4 GPUs",
            "phase": "train",
            "quantity": "val_accuracy",
            "published": row["val_acc"],
        }
        lossy = "Published chunks are consecutive ranges and lose edges between them"
        verdict = lossy if count > 1 else "Published: one chunk, whole graph, rebuilt in each layer"
        mine = ours[(ours["total_chunks"] == count) & ours["val_accuracy"].notna()]
        for _, own in mine.iterrows():
            mode = "whole graph" if count == 1 else str(own["chunks"])
            kept = own["edges_kept"]
            edges = f", {kept:.1%} of edges kept" if pd.notna(kept) else ""
            yield {
                **common,
                "ours": own["val_accuracy"],
                "run": f"{own['data']}, {own['layout']}, {mode}",
                "verdict": f"{verdict}. Ours: {mode}{edges}",
            }
        if mine.empty:
            yield {**common, "verdict": verdict}


def _boca() -> Iterator[dict[str, Any]]:
    frame = boca_table().frame
    for _, row in frame[frame["gpus"] > 1].iterrows():
        for library in ("pyg", "dgl"):
            speedup = float(row[f"{library}_speedup"])
            slower = "Slower than one GPU" if speedup < 1.0 else "Far from the bound"
            reason = (
                "each process very likely trained on all of the data"
                if library == "dgl"
                else "the time includes loading the data set"
            )
            workers = "" if row["workers"] == 8 else ", one loader worker instead of 8"
            yield {
                "study": "boca",
                "table": "2",
                "model": str(row["model"]),
                "setting": f"{row['gpus']} GPUs, batch {row['batch_size']}, {library}",
                "phase": "train",
                "quantity": "speedup",
                "published": speedup,
                "bound": float(row["gpus"]),
                "verdict": f"{slower}: {reason}{workers}",
            }


def _torchgpipe() -> Iterator[dict[str, Any]]:
    for _, row in torchgpipe_table().frame.iterrows():
        most, published = row["bound"], float(row["torchgpipe_speedup"])
        if pd.isna(most) or published == 1.0:
            continue
        yield {
            "study": "torchgpipe",
            "table": "benchmark",
            "model": str(row["model"]),
            "setting": str(row["setting"]),
            "phase": "train",
            "quantity": "speedup",
            "published": published,
            "bound": most,
            "verdict": "Within the bound" if published <= most else "Above the bound",
        }
