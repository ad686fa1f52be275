"""Dearing and Wang's tables 2 and 3 of GAT, with this run's numbers beside the published ones."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.loading.run import Run
from analysis.papers.published_data import published_studies, read_published, study_notes
from analysis.render.named_table import NamedTable
from analysis.summary.varying_settings import settings_in_words, varying_settings

_SHOWN = ("implementation", "chunks")
_LEARNED = ["train_loss", "train_accuracy", "val_accuracy", "test_accuracy"]


def gat_training_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """GAT's training rows of the summary, with `total_chunks` and all columns of accuracy."""
    measured = summary[
        (summary["model"] == "gat") & (summary["phase"] == "train") & (summary["n"] > 0)
    ]
    rows = measured.assign(total_chunks=measured["microbatches"] * measured["replicas"])
    return rows.reindex(columns=[*rows.columns, *(c for c in _LEARNED if c not in rows.columns)])


def gat_settings(summary: pd.DataFrame) -> list[str]:
    """The settings that tell rows of GAT apart and have no column in our tables."""
    rows = summary[summary["model"] == "gat"]
    varying = varying_settings(rows) if len(rows) else []
    return [name for name in varying if name not in _SHOWN]


def gat_tables(run: Run, summary: pd.DataFrame) -> list[NamedTable]:
    """Table 2 (one device) and table 3 (chunks), published rows first."""
    study, ours = published_studies()["dearing"], gat_training_rows(summary)
    names = gat_settings(summary)
    single = read_published("dearing_table2_single_device")
    alone = ours[(ours["stages"] * ours["replicas"] == 1) & (ours["total_chunks"] == 1)]
    devices = pd.DataFrame(
        {
            "source": ["published"] * len(single) + ["ours"] * len(alone),
            "compute": [*single["compute"], *_devices(run, alone)],
            "framework": [*single["framework"], *alone["implementation"]],
            "data": [*single["dataset"].str.lower(), *alone["data"]],
            "epoch_ms": [*single["avg_epoch_ms"], *(1e3 * alone["mean_s"])],
            "test_accuracy": [*single["test_acc"], *alone["test_accuracy"]],
            "n": [*[300] * len(single), *alone["n"]],
            **_settings_column(alone, names, len(single)),
        }
    )
    chunks = read_published("dearing_table3_pubmed")
    keep = chunks["rebuild"].map({"yes": "contiguous, rebuilt in each layer", "no": "whole graph"})
    published_rows = pd.DataFrame(
        {
            "source": "published",
            "data": "pubmed",
            "layout": chunks["compute"],
            "implementation": chunks["framework"],
            "chunks": chunks["chunks"],
            "mode": keep,
            "epoch_s": chunks["avg_epoch_s"],
            "train_loss": chunks["train_loss"],
            "train_accuracy": chunks["train_acc"],
            "val_accuracy": chunks["val_acc"],
        }
    )
    measured = pd.DataFrame(
        {
            "source": "ours",
            "data": ours["data"],
            "layout": ours["layout"],
            "implementation": ours["implementation"],
            "chunks": ours["total_chunks"],
            "mode": ours["chunks"],
            "epoch_s": ours["mean_s"],
            "train_loss": ours["train_loss"],
            "train_accuracy": ours["train_accuracy"],
            "val_accuracy": ours["val_accuracy"],
            "test_accuracy": ours["test_accuracy"],
            "edges_kept": ours["edges_kept"],
            "n": ours["n"],
            **_settings_column(ours, names),
        }
    )
    return [
        NamedTable(
            "dearing_table2",
            "Dearing and Wang's table 2: GAT on one device, milliseconds an epoch",
            devices,
            study_notes(study),
        ),
        NamedTable(
            "dearing_table3",
            "Dearing and Wang's table 3: GAT in chunks, seconds an epoch and what was learned",
            pd.concat([published_rows, measured], ignore_index=True),
            study_notes(study, "edges", "rebuild", "devices"),
        ),
    ]


def _devices(run: Run, ours: pd.DataFrame) -> list[str]:
    """CPU or GPU of each row; a setting that is a column only where it varies within a study."""
    cells = run.cells[run.cells["model"] == "gat"]
    of_data = dict(zip(cells["data"], cells["device"], strict=True))
    return [str(row.get("device", of_data[row["data"]])).upper() for _, row in ours.iterrows()]


def _settings_column(
    ours: pd.DataFrame, names: Sequence[str], published: int = 0
) -> dict[str, list[str]]:
    """What tells our rows apart, below so many published ones; no column where nothing does."""
    words = [settings_in_words(row, names) for _, row in ours.iterrows()]
    return {"settings": [""] * published + words} if any(words) else {}
