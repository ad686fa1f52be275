"""Boca's conclusions, and what its table 2 has for each."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.studies.claims import Claim
from analysis.studies.study import read_published

MODELS = {"sage": "GraphSAGE", "gat": "GAT"}
"""Names of models in the study."""
EPOCHS = 50
"""Of which the study's seconds are."""
HALF = 0.5
_WAITING = "share of a step that waits for its mini-batch"
BOTTLENECK = Claim(
    "Sampling is the bottleneck: more than half of a step waits for its mini-batch",
    "text",
    _WAITING,
    nothing=HALF,
)
OURS_BOTTLENECK = Claim("Sampling is the bottleneck of ours", "none", _WAITING, nothing=HALF)
ON_TWO = {
    "PyG": Claim("PyG is faster on two devices than on one", "2", "speedup", of_devices=True),
    "DGL": Claim(
        "DGL is slower on two devices than on one", "2", "speedup", "less", of_devices=True
    ),
    "ours": Claim("Ours is faster on two devices than on one", "none", "speedup", of_devices=True),
}
"""By library; of ours nothing is published."""
ON_FOUR = {
    "PyG": Claim(
        "PyG is slower on four devices than on two",
        "2",
        "speedup over two",
        "less",
        of_devices=True,
    ),
    "DGL": Claim(
        "DGL is slower on four devices than on two",
        "2",
        "speedup over two",
        "less",
        of_devices=True,
    ),
    "ours": Claim(
        "Ours is faster on four devices than on two", "none", "speedup over two", of_devices=True
    ),
}
WORKERS = Claim(
    "More data workers make it slower", "text", "speedup over fewer", "less", of_devices=True
)
HANGS = Claim(
    "Several data workers on four devices hang",
    "text",
    "share of cells that did not end",
    nothing=HALF,
)
CLAIMS = (BOTTLENECK, OURS_BOTTLENECK, *ON_TWO.values(), *ON_FOUR.values(), WORKERS, HANGS)


def published_seconds() -> dict[tuple[str, str, int, int], tuple[int, float]]:
    """(model, library, devices, batch) -> data workers and seconds of 50 epochs, of table 2."""
    found = {}
    for row in read_published("boca_table2_reddit").to_dict("records"):
        for library in ("PyG", "DGL"):
            key = (str(row["model"]), library, int(row["gpus"]), int(row["batch_size"]))
            found[key] = int(row["workers"]), float(row[f"{library.lower()}_s"])
    return found


def published_epochs() -> pd.DataFrame:
    """Table 2 as seconds of one epoch, by our names of models, library, ranks and batch_size."""
    names = {words: name for name, words in MODELS.items()}
    return pd.DataFrame(
        [
            {
                "model": names[model],
                "library": library,
                "ranks": ranks,
                "batch_size": batch,
                "epoch_s": seconds / EPOCHS,
            }
            for (model, library, ranks, batch), (_, seconds) in published_seconds().items()
        ]
    )


def published_speedups() -> Iterator[tuple[Claim, str, str, int, float]]:
    """Claim, model, library, batch and speedup: two devices over one, and four over two."""
    seconds = published_seconds()
    for (model, library, devices, batch), (_, mine) in seconds.items():
        if devices > 1:
            claim = (ON_TWO if devices == 2 else ON_FOUR)[library]
            fewer = seconds[model, library, devices // 2, batch][1]
            yield claim, model, library, batch, fewer / mine
