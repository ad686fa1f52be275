"""Verdicts on the published speedups of Boca's table 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.studies.study import read_published


def _over_one_gpu(frame: pd.DataFrame, column: str) -> list[float]:
    alone = frame[frame["gpus"] == 1].set_index(["model", "batch_size"])[column]
    keys: list[Any] = list(zip(frame["model"], frame["batch_size"], strict=True))
    return [float(alone[key]) / float(t) for key, t in zip(keys, frame[column], strict=True)]


def boca_verdict_rows() -> Iterator[dict[str, Any]]:
    """Rows of the corrected study for Boca's table 2: speedups over one GPU."""
    frame = read_published("boca_table2_reddit")
    frame = frame.assign(
        pyg_speedup=_over_one_gpu(frame, "pyg_s"), dgl_speedup=_over_one_gpu(frame, "dgl_s")
    )
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
