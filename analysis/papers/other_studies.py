"""Studies whose models this suite does not run: Boca's table 2 and torchgpipe's speedups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.papers.published_data import published_studies, read_published, study_notes
from analysis.render.named_table import NamedTable
from gnnhpc.core.bounds import bound


def boca_table() -> NamedTable:
    """Boca's table 2, with the speedups over one GPU that follow from it."""
    study, frame = published_studies()["boca"], read_published("boca_table2_reddit")
    return NamedTable(
        "boca_table2",
        "Boca's table 2: 50 epochs on Reddit, seconds of the longest training process",
        frame.assign(
            pyg_speedup=_over_one_gpu(frame, "pyg_s"), dgl_speedup=_over_one_gpu(frame, "dgl_s")
        ),
        study_notes(study, "sharding", "loading", "workers"),
    )


def _over_one_gpu(frame: pd.DataFrame, column: str) -> list[float]:
    alone = frame[frame["gpus"] == 1].set_index(["model", "batch_size"])[column]
    keys: list[Any] = list(zip(frame["model"], frame["batch_size"], strict=True))
    return [float(alone[key]) / float(t) for key, t in zip(keys, frame[column], strict=True)]


def torchgpipe_table() -> NamedTable:
    """torchgpipe's speedups with their bounds, where the setting has a number of devices."""
    study, frame = published_studies()["torchgpipe"], read_published("torchgpipe_speedups")
    return NamedTable(
        "torchgpipe_speedups",
        "torchgpipe's speedups, and the bound of balanced stages",
        frame.assign(bound=frame["setting"].map(setting_bound).astype(float)),
        study_notes(study),
    )


def setting_bound(setting: str) -> float | None:
    """The bound of balanced stages for `n=4 m=32`; for `pipeline-4`, which names no micro-batches,
    the number of devices; None for other settings.
    """
    if setting.startswith("n="):
        stages, microbatches = (int(part[2:]) for part in setting.split())
        return bound(1, stages, microbatches)
    if setting.startswith("pipeline-"):
        return float(setting.removeprefix("pipeline-"))
    return None


def boca_verdict_rows() -> Iterator[dict[str, Any]]:
    """Rows of the corrected study for Boca's table 2: speedups over one GPU."""
    frame = boca_table().frame
    for _, row in frame[frame["gpus"] > 1].iterrows():
        for library in ("pyg", "dgl"):
            speedup = float(row[f"{library}_speedup"])
            slower = "Slower than one GPU" if speedup < 1.0 else "Below the bound"
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


def torchgpipe_verdict_rows() -> Iterator[dict[str, Any]]:
    """Rows of the corrected study for torchgpipe's published speedups."""
    for _, row in torchgpipe_table().frame.iterrows():
        bound_value, published = row["bound"], float(row["torchgpipe_speedup"])
        if pd.isna(bound_value) or published == 1.0:
            continue
        yield {
            "study": "torchgpipe",
            "table": "benchmark",
            "model": str(row["model"]),
            "setting": str(row["setting"]),
            "phase": "train",
            "quantity": "speedup",
            "published": published,
            "bound": bound_value,
            "verdict": "Within the bound"
            if published <= bound_value
            else f"Above the bound by {published / bound_value - 1:.1%}; no interval is published",
        }
