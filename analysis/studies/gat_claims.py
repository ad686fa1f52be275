"""Dearing and Wang's conclusions, and what their tables have for each."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.studies.claims import Claim
from analysis.studies.study import read_published

PUBLISHED_LAYOUT = "pp4"
"""Of the rows in chunks."""
A_POINT = 0.01
"""Of accuracy: what is less is no loss."""
DGL_ON_CPU = Claim("DGL is faster than PyG on a CPU", "2", "speedup")
PYG_ON_GPU = Claim("PyG is faster than DGL on a GPU", "2", "speedup")
LEARN_APART = Claim(
    "DGL and PyG reach other accuracies",
    "2",
    "test accuracy, DGL less PyG",
    "either",
    nothing=0.0,
    phase="test",
    negligible=A_POINT,
)
FOUR_DEVICES = Claim(
    "One chunk takes longer on four devices than on one", "3", "speedup", "less", of_devices=True
)
MORE_CHUNKS = Claim(
    "More chunks take longer, rebuilt in each layer", "3", "speedup", "less", of_devices=True
)
REBUILDING = Claim("Cutting edges out in each layer costs time", "3", "seconds over those cut once")
BECAUSE_REBUILT = Claim(
    "More chunks take longer because edges are cut out in each layer",
    "3",
    "speedup over that of edges cut once",
    "less",
)
CUT_ONCE = Claim("More chunks take longer, cut once", "3", "speedup", "less", of_devices=True)
ACCURACY_BY_MODE = {
    mode: Claim(
        f"Chunks {words} cost accuracy",
        "3",
        "validation accuracy lost",
        nothing=0.0,
        negligible=A_POINT,
    )
    for mode, words in (
        ("contiguous", "of consecutive nodes"),
        ("clustered", "of clustered nodes"),
        ("halo", "that keep all edges"),
    )
}
CLAIMS = (
    *(DGL_ON_CPU, PYG_ON_GPU, LEARN_APART, FOUR_DEVICES),
    *(MORE_CHUNKS, REBUILDING, BECAUSE_REBUILT, CUT_ONCE),
    *ACCURACY_BY_MODE.values(),
)


def in_chunks(data: str, framework: str, chunks: int, layout: str = PUBLISHED_LAYOUT) -> str:
    """The setting of a comparison, such as `pubmed, DGL, 4 chunks`; of times with the layout where
    it is another than the published one, whose times are no such layout's.
    """
    where = "" if layout == PUBLISHED_LAYOUT else f", {layout}"
    return f"{data}, {framework}, {chunks} chunk{'s' if chunks > 1 else ''}{where}"


def published_numbers() -> dict[Claim, dict[str, float]]:
    """The quantity of each claim as the tables give it, by setting."""
    single = read_published("dearing_table2_single_device")
    ms = {(d.lower(), c, f): float(t) for c, f, d, t in _columns(single, "avg_epoch_ms")}
    accuracy = {(d.lower(), c, f): float(a) for c, f, d, a in _columns(single, "test_acc")}
    data = sorted({key[0] for key in ms})
    rows = read_published("dearing_table3_pubmed").to_dict("records")
    # By compute, framework, chunks and whether edges were cut out in each layer.
    table3 = {(r["compute"], r["framework"], r["chunks"], r["rebuild"]): r for r in rows}

    def seconds(*key: object) -> float:
        return float(table3[key]["avg_epoch_s"])  # type: ignore[index]

    four = "DGX 4 GPU"
    rebuilt = {k: table3[four, "DGL", k, "yes"] for k in (1, 2, 3, 4)}
    first = rebuilt[1]
    return {
        DGL_ON_CPU: {d: ms[d, "CPU", "PyG"] / ms[d, "CPU", "DGL"] for d in data},
        PYG_ON_GPU: {d: ms[d, "GPU", "DGL"] / ms[d, "GPU", "PyG"] for d in data},
        LEARN_APART: {
            f"{d}, {c}": accuracy[d, c, "DGL"] - accuracy[d, c, "PyG"]
            for d in data
            for c in ("CPU", "GPU")
        },
        FOUR_DEVICES: {
            f"pubmed, {f}": seconds("GPU", f, 1, "no") / seconds(four, f, 1, "no")
            for f in ("DGL", "PyG")
        },
        MORE_CHUNKS: {
            in_chunks("pubmed", "DGL", k): float(first["avg_epoch_s"] / rebuilt[k]["avg_epoch_s"])
            for k in (2, 3, 4)
        },
        REBUILDING: {
            in_chunks("pubmed", "DGL", 1): seconds(four, "DGL", 1, "yes")
            / seconds(four, "DGL", 1, "no")
        },
        ACCURACY_BY_MODE["contiguous"]: {
            in_chunks("pubmed", "DGL", k): float(first["val_acc"] - rebuilt[k]["val_acc"])
            for k in (2, 3, 4)
        },
    }


def _columns(single: pd.DataFrame, quantity: str) -> Iterator[tuple[str, str, str, float]]:
    columns = [single[name] for name in ("compute", "framework", "dataset", quantity)]
    return zip(*columns, strict=True)
