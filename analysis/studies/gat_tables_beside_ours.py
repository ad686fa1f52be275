"""Dearing and Wang's tables 2 and 3 of GAT: published, ours, and what chunks lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.statistics.intervals import Interval
from analysis.studies.gat_runs import GatRow, GatRows
from analysis.studies.gat_verdicts import gat_conclusions
from analysis.studies.study import published_studies, read_published, study_notes

_DEVICE = ["data", "framework", "compute"]
_DEVICE_COLUMNS = [
    *_DEVICE,
    *("published_ms", "epoch_ms", "epoch_ms_low", "epoch_ms_high"),
    *("published_accuracy", "test_accuracy", "test_accuracy_low", "test_accuracy_high"),
    *("runs", "settings"),
]
_CHUNKED = ["data", "framework", "compute", "layout", "chunks", "mode", "rebuild"]
_CHUNKED_COLUMNS = [
    *_CHUNKED,
    *("published_s", "epoch_s", "epoch_low", "epoch_high"),
    *("published_accuracy_lost", "accuracy_lost", "accuracy_lost_low", "accuracy_lost_high"),
    *("runs", "settings"),
]
_LEARNT_COLUMNS = [
    *_CHUNKED,
    *("published_edges_lost", "edges_lost"),
    *("published_loss", "train_loss", "train_loss_low", "train_loss_high"),
    *("published_val_accuracy", "val_accuracy", "val_accuracy_low", "val_accuracy_high"),
]
_FOUR = "DGX 4 GPU"


def gat_tables(rows: GatRows) -> list[Table]:
    """The conclusions, table 2 (one device), and table 3 (chunks) in two parts."""
    study = published_studies()["dearing"]
    alone = [_on_device(row) for row in rows.on_one_device]
    devices = _side_by_side(_published_devices(), alone, _DEVICE, _DEVICE_COLUMNS)
    all_rows = [_in_chunks(row, rows) for row in rows]
    chunks = _side_by_side(_published_chunks(), all_rows, _CHUNKED, _CHUNKED_COLUMNS)
    learnt = _side_by_side(_published_chunks(), all_rows, _CHUNKED, _LEARNT_COLUMNS)
    return [
        gat_conclusions(rows),
        Table(
            "dearing_table2",
            "Dearing and Wang's table 2: GAT on one device, milliseconds an epoch and accuracy of "
            "test nodes",
            devices,
            study_notes(study),
            devices.drop(columns=["runs", "settings"]),
        ),
        Table(
            "dearing_table3",
            "Dearing and Wang's table 3: GAT in chunks, seconds an epoch and accuracy lost",
            chunks,
            (
                *study_notes(study, "edges", "rebuild", "devices"),
                "Accuracy is of validation nodes; that which is lost is against the whole graph, "
                "seed by seed.",
            ),
            _for_paper(chunks),
        ),
        Table(
            "dearing_table3_learnt",
            "Dearing and Wang's table 3: GAT in chunks, edges lost, loss of training and accuracy "
            "of validation nodes",
            learnt,
            ("Edges lost are percent of the graph's directed ones.",),
            _learnt_for_paper(learnt),
        ),
    ]


def _for_paper(chunks: pd.DataFrame) -> pd.DataFrame:
    """Time and lost accuracy of table 3's rows."""
    shown = ["published_s", "epoch_s", "epoch_low", "epoch_high"]
    shown += ["accuracy_lost", "accuracy_lost_low", "accuracy_lost_high"]
    return _named(chunks)[[*_NAMED, *shown]]


def _learnt_for_paper(learnt: pd.DataFrame) -> pd.DataFrame:
    """Our lost edges, and loss and accuracy of table 3's rows."""
    return _named(learnt)[[*_NAMED, *_LEARNT_COLUMNS[len(_CHUNKED) + 1 :]]]


_NAMED = ["setting", "chunks", "mode"]


def _named(chunks: pd.DataFrame) -> pd.DataFrame:
    """What names a row of table 3 in three columns."""
    rebuilt = chunks["rebuild"].map({"yes": ", rebuilt", "no": ""})
    return chunks.assign(
        setting=chunks["data"] + ", " + chunks["framework"] + ", " + chunks["layout"],
        mode=chunks["mode"] + rebuilt,
    )


def _side_by_side(
    published: pd.DataFrame, ours: Sequence[dict[str, Any]], keys: list[str], columns: list[str]
) -> pd.DataFrame:
    """Published rows with ours of the same keys, and those of ours that nobody published."""
    if ours:
        published = published.merge(pd.DataFrame(ours), on=keys, how="outer", sort=False)
    return published.reindex(columns=columns)


def _published_devices() -> pd.DataFrame:
    single = read_published("dearing_table2_single_device")
    return pd.DataFrame(
        {
            "data": single["dataset"].str.lower(),
            "framework": single["framework"],
            "compute": single["compute"],
            "published_ms": single["avg_epoch_ms"],
            "published_accuracy": single["test_acc"],
        }
    )


def _published_chunks() -> pd.DataFrame:
    """Table 3; what chunks lost is against one chunk, rebuilt as they are."""
    table = read_published("dearing_table3_pubmed")
    kept = read_published("dearing_edges_kept").set_index("chunks")["edges_kept"]
    rebuilt = table["rebuild"] == "yes"
    whole = table.loc[rebuilt & (table["chunks"] == 1), "val_acc"].iloc[0]
    return pd.DataFrame(
        {
            "data": "pubmed",
            "framework": table["framework"],
            "compute": table["compute"].replace(_FOUR, "GPU"),
            "layout": table["compute"].map(lambda compute: "pp4" if compute == _FOUR else "seq"),
            "chunks": table["chunks"],
            "mode": ["contiguous" if k > 1 else "whole graph" for k in table["chunks"]],
            "rebuild": table["rebuild"],
            "published_s": table["avg_epoch_s"],
            "published_loss": table["train_loss"],
            "published_val_accuracy": table["val_acc"],
            "published_edges_lost": 100.0 * (1.0 - table["chunks"].map(kept)),
            "published_accuracy_lost": (whole - table["val_acc"]).where(rebuilt),
        }
    )


def _on_device(row: GatRow) -> dict[str, Any]:
    ms = 1e3
    return {
        "data": row.data,
        "framework": row.framework,
        "compute": row.compute,
        **_bounded("epoch_ms", row.seconds, ms),
        **_learnt(row, "test_accuracy"),
        "runs": row.runs,
        "settings": row.others,
    }


def _in_chunks(row: GatRow, rows: GatRows) -> dict[str, Any]:
    whole = rows.whole_graph_of(row) if row.chunks > 1 else None
    lost = whole.accuracy_less(row, "val") if whole else None
    seconds = _bounded("epoch", row.seconds)
    return {
        "data": row.data,
        "framework": row.framework,
        "compute": row.compute,
        "layout": row.where,
        "chunks": row.chunks,
        "mode": row.mode,
        "rebuild": "yes" if row.rebuilt else "no",
        "epoch_s": seconds.pop("epoch"),
        **seconds,
        **_learnt(row, "train_loss"),
        **_learnt(row, "val_accuracy"),
        "edges_lost": 100.0 * (1.0 - row.edges_kept),
        **_bounded("accuracy_lost", lost),
        "runs": row.runs,
        "settings": row.others,
    }


def _bounded(name: str, of: Interval | None, factor: float = 1.0) -> dict[str, float | None]:
    values = (of.value, of.low, of.high) if of else (None, None, None)
    names = (name, f"{name}_low", f"{name}_high")
    return {
        name: None if value is None else factor * value
        for name, value in zip(names, values, strict=True)
    }


def _learnt(row: GatRow, name: str) -> dict[str, float | None]:
    return {column: row.learnt.get(column) for column in (name, f"{name}_low", f"{name}_high")}
