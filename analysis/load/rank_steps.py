"""Frames of ranks' records with the cell and rank of each row, and steps over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.read_records import STEP_COLUMNS, RankFile

_PLACE = ("cell", "rank", "stage", "replica", "host")
_DERIVED = {*_PLACE, "waited_s", "step_s"}
_OF_THE_SLOWEST = (
    *("cpu_s", "data_s", "sample_s", "gather_s", "recompute_s", "peak_rss_mib", "peak_device_mib"),
)
"""Columns of which a step has the largest value of its ranks."""


class Places:
    """Which cell, attempt and rank each file is of, and which of its rows count."""

    def __init__(
        self,
        files: Sequence[RankFile],
        headers: Sequence[Mapping[str, Any] | None],
        cells: Sequence[str],
        damaged: Sequence[int],
    ) -> None:
        """`damaged` are positions of cells, whose records count nowhere."""
        known = [header or {} for header in headers]
        self._cell = np.array([file.cell for file in files], np.int64)
        self._attempt = np.array([file.attempt for file in files], np.int64)
        self._rank = np.array([file.rank for file in files], np.int64)
        self._whole = ~np.isin(self._cell, list(damaged))
        self._several = len(set(zip(self._cell, self._attempt, strict=True))) > len(set(self._cell))
        self._files = pd.DataFrame(
            {
                "cell": pd.Categorical.from_codes(self._cell, pd.Index(cells)),
                "rank": self._rank.astype(np.int16),
                **{
                    key: np.array([header.get(key, 0) for header in known], np.int16)
                    for key in ("stage", "replica")
                },
                "host": pd.Categorical([str(header.get("host", "")) for header in known]),
            }
        )

    def place(self, frame: pd.DataFrame) -> pd.DataFrame:
        """`frame` with cell, rank, stage, replica and host instead of `source`.

        Of a step that several attempts recorded the rows of the newest one stay.
        """
        source = frame["source"].to_numpy()
        kept = self._whole[source]
        if self._several and len(frame):
            kept = kept & self.is_newest(frame)
        frame, source = frame[kept], source[kept]
        data = {name: self._files[name].array[source] for name in _PLACE}
        data |= {str(name): frame[name].array for name in frame.columns if name != "source"}
        return pd.DataFrame(data, copy=False)

    def is_newest(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Whether each row's attempt is the newest one that recorded the row's step."""
        attempt = pd.Series(self._attempt[frame["source"].to_numpy()])
        newest = attempt.groupby(self._keys(frame), sort=False).transform("max")
        return np.asarray(attempt == newest)

    def redone(self, steps: pd.DataFrame, cells: int) -> NDArray[np.int64]:
        """How many training steps of each cell were recorded again after a resume."""
        counts = np.zeros(cells, np.int64)
        if self._several and len(steps):
            again = steps[~self.is_newest(steps) & (steps["phase"] == "train").to_numpy()]
            cell = self._cell[again["source"].to_numpy()]
            distinct = pd.DataFrame({"cell": cell, "step": again["step"]}).drop_duplicates()
            np.add.at(counts, distinct["cell"].to_numpy(), 1)
        return counts

    def _keys(self, frame: pd.DataFrame) -> list[Any]:
        source = frame["source"].to_numpy()
        phase = frame["phase"].cat.codes.to_numpy()
        return [self._cell[source], self._rank[source], phase, frame["step"].to_numpy()]


def rank_steps(placed: pd.DataFrame) -> pd.DataFrame:
    """Steps of ranks in order of cell, phase, step and rank, with `step_s` and `waited_s`.

    `step_s` is from barrier to barrier, with the wait for a sampled mini-batch before the first.
    `waited_s` is `wait_s`, and 0 for a cell of one rank, which waits for no other.
    """
    order = np.lexsort(
        [
            placed["rank"].to_numpy(),
            placed["step"].to_numpy(),
            placed["phase"].cat.codes.to_numpy(),
            placed["cell"].cat.codes.to_numpy(),
        ]
    )
    ranks = placed.iloc[order].reset_index(drop=True)
    several = ranks["rank"].groupby(ranks["cell"], observed=True).transform("max") > 0
    ranks["waited_s"] = ranks["wait_s"].where(several, 0.0)
    sampled = ranks["sampled_edges"].notna()
    ranks["step_s"] = ranks["wall_s"] + ranks["data_s"].where(sampled, 0.0)
    return ranks


def steps_of_ranks(ranks: pd.DataFrame, world: NDArray[Any]) -> pd.DataFrame:
    """One row a mini-batch that all ranks recorded; `ranks` is sorted as `rank_steps` sorts it."""
    cell, phase = ranks["cell"].cat.codes.to_numpy(), ranks["phase"].cat.codes.to_numpy()
    step = ranks["step"].to_numpy()
    first = np.ones(len(ranks), bool)
    first[1:] = (np.diff(cell) != 0) | (np.diff(phase) != 0) | (np.diff(step) != 0)
    starts = np.flatnonzero(first)
    steps = ranks.iloc[starts].reset_index(drop=True)
    steps = steps[["cell", "phase", "step", "epoch", "warmup", "profiled"]].copy()

    def over(values: Any, how: np.ufunc) -> NDArray[Any]:
        array = np.asarray(values)
        return how.reduceat(array, starts) if starts.size else array[:0]

    recorded = np.diff(np.append(starts, len(ranks)))
    for name in ("wall_s", "step_s"):
        steps[name] = over(ranks[name], np.maximum)
    # All stages of a replica have the same samples, so that the first stage's are counted.
    first_stage = ranks["stage"].to_numpy() == 0
    for name in ("samples", "sampled_edges"):
        steps[name] = over(np.where(first_stage, ranks[name].to_numpy(), 0), np.add)
    with np.errstate(invalid="ignore", divide="ignore"):
        steps["bubble"] = over(ranks["waited_s"], np.add) / over(ranks["step_s"], np.add)
    # Averages over ranks, so that these seconds and those of sampling add up to the step.
    passes = ranks["forward_s"] + ranks["backward_s"]
    for name, seconds in (
        ("forwards_s", ranks["forward_s"]),
        ("passes_s", passes),
        ("weights_s", ranks["weights_s"]),
        ("compute_s", passes + ranks["optimizer_s"]),
        ("allreduce_s", ranks["allreduce_s"]),
        ("outside_s", ranks["wait_s"]),
    ):
        steps[name] = over(seconds, np.add) / recorded
    for name in _OF_THE_SLOWEST:
        steps[name] = over(ranks[name], np.fmax)
    metrics = [name for name in ranks.columns if name not in STEP_COLUMNS | _DERIVED]
    for name in ("loss", *metrics):
        steps[name] = over(ranks[name], np.fmax)
    whole = recorded == world[steps["cell"].cat.codes.to_numpy()]
    return steps if whole.all() else steps[whole].reset_index(drop=True)
