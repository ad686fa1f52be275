"""Dearing and Wang's tables 2 and 3 of GAT, with this run's numbers beside the published ones."""

from __future__ import annotations

import pandas as pd

from analysis.papers.published_data import published_studies, read_published, study_notes
from analysis.render.named_table import NamedTable

_LEARNED = ["train_loss", "train_accuracy", "val_accuracy", "test_accuracy"]


def gat_training_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """GAT's training rows of the summary, with `total_chunks` and all columns of accuracy."""
    measured = summary[
        (summary["model"] == "gat") & (summary["phase"] == "train") & (summary["n"] > 0)
    ]
    rows = measured.assign(total_chunks=measured["microbatches"] * measured["replicas"])
    return rows.reindex(columns=[*rows.columns, *(c for c in _LEARNED if c not in rows.columns)])


def gat_tables(summary: pd.DataFrame) -> list[NamedTable]:
    """Table 2 (one device) and table 3 (chunks), published rows first."""
    study, ours = published_studies()["dearing"], gat_training_rows(summary)
    single = read_published("dearing_table2_single_device")
    alone = ours[(ours["stages"] * ours["replicas"] == 1) & (ours["total_chunks"] == 1)]
    devices = pd.DataFrame(
        {
            "source": ["published"] * len(single) + ["ours"] * len(alone),
            "compute": [*single["compute"], *["CPU"] * len(alone)],
            "framework": [*single["framework"], *alone["implementation"]],
            "data": [*single["dataset"].str.lower(), *alone["data"]],
            "epoch_ms": [*single["avg_epoch_ms"], *(1e3 * alone["mean_s"])],
            "test_accuracy": [*single["test_acc"], *alone["test_accuracy"]],
            "n": [*[300] * len(single), *alone["n"]],
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
