"""The tables of Dearing and Wang, of Boca and of torchgpipe, with ours beside them where we can."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.papers.published_data import PublishedStudy, published_studies, read_published
from analysis.render.table_files import NamedTable
from gnnhpc.core.schedule import bound

_LEARNED = ["train_loss", "train_accuracy", "val_accuracy", "test_accuracy"]


def _notes(source: PublishedStudy, *names: str) -> tuple[str, ...]:
    head = f"Published: {source.citation}. {source.machine}."
    return (head, *(f"Known defect: {source.defects[name]}" for name in names))


def gat_training_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The training rows of GAT, with chunks in all (over replicas) and whatever was learned."""
    mine = summary[(summary["model"] == "gat") & (summary["phase"] == "train") & (summary["n"] > 0)]
    rows = mine.assign(total_chunks=mine["microbatches"] * mine["replicas"])
    return rows.reindex(columns=[*rows.columns, *(c for c in _LEARNED if c not in rows.columns)])


def gat_tables(summary: pd.DataFrame) -> list[NamedTable]:
    """Table 2 (one device) and table 3 (chunks) with this run's rows under them."""
    source, ours = published_studies()["dearing"], gat_training_rows(summary)
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
    theirs = pd.DataFrame(
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
    mine = pd.DataFrame(
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
            _notes(source),
        ),
        NamedTable(
            "dearing_table3",
            "Dearing and Wang's table 3: GAT in chunks, seconds an epoch and what was learned",
            pd.concat([theirs, mine], ignore_index=True),
            _notes(source, "edges", "rebuild", "devices"),
        ),
    ]


def boca_table() -> NamedTable:
    """Boca's table 2 as printed, with the speedup that its columns give over one GPU."""
    source, frame = published_studies()["boca"], read_published("boca_table2_reddit")
    return NamedTable(
        "boca_table2",
        "Boca's table 2: 50 epochs on Reddit, seconds of the longest training process",
        frame.assign(
            pyg_speedup=_over_one_gpu(frame, "pyg_s"), dgl_speedup=_over_one_gpu(frame, "dgl_s")
        ),
        _notes(source, "sharding", "loading"),
    )


def _over_one_gpu(frame: pd.DataFrame, column: str) -> list[float]:
    alone = frame[frame["gpus"] == 1].set_index(["model", "batch_size"])[column]
    keys: list[Any] = list(zip(frame["model"], frame["batch_size"], strict=True))
    return [float(alone[key]) / float(t) for key, t in zip(keys, frame[column], strict=True)]


def torchgpipe_table() -> NamedTable:
    """torchgpipe's speedups with the balanced bound, where the setting tells the micro-batches."""
    source, frame = published_studies()["torchgpipe"], read_published("torchgpipe_speedups")
    return NamedTable(
        "torchgpipe_speedups",
        "torchgpipe's speedups, and the bound of balanced stages",
        frame.assign(bound=frame["setting"].map(setting_bound).astype(float)),
        _notes(source),
    )


def setting_bound(setting: str) -> float | None:
    """The bound of `n=4 m=32`; of `pipeline-4`, whose micro-batches are not told, its devices."""
    if setting.startswith("n="):
        stages, microbatches = (int(part[2:]) for part in setting.split())
        return bound(1, stages, microbatches)
    if setting.startswith("pipeline-"):
        return float(setting.removeprefix("pipeline-"))
    return None
