"""The frames of rank records: each row with its cell and rank, and steps over all ranks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.loading.rank_files import RankFile, RankFrames
from analysis.loading.record_frames import STEP_COLUMNS

_OWN_COLUMNS = {"cell", "rank", "stage", "replica", "host", "unlike"} | {
    *("outside_s", "waited_s", "step_s")
}

_OF_THE_SLOWEST = (
    *("cpu_s", "data_s", "sample_s", "gather_s", "recompute_s"),
    *("peak_rss_mib", "peak_device_mib"),
)
"""Columns of which a step has the largest of its ranks."""


def _ranks_of_files(frames: RankFrames, files: list[RankFile], names: list[str]) -> pd.DataFrame:
    """One row a file: the cell, rank, stage, replica and attempt of its records."""
    headers = [header or {} for header in frames.headers]
    place = pd.DataFrame(
        {
            "cell": pd.Categorical.from_codes([file.cell for file in files], pd.Index(names)),
            "attempt": np.array([file.attempt for file in files], np.int16),
        }
    )
    for key in ("rank", "stage", "replica"):
        place[key] = np.array([header.get(key, 0) for header in headers], np.int16)
    place["host"] = pd.Categorical([str(header.get("host", "")) for header in headers])
    return place


def with_ranks(
    frame: pd.DataFrame, files: list[RankFile], frames: RankFrames, names: list[str]
) -> pd.DataFrame:
    """`frame` with cell, rank, stage and replica instead of `source`, without repeated rows."""
    if frame.empty:
        place = _ranks_of_files(frames, files, names)
        return place.iloc[:0].drop(columns="attempt").join(frame.drop(columns="source").iloc[:0])
    place = _ranks_of_files(frames, files, names).iloc[frame["source"]].reset_index(drop=True)
    keep = ~_redone_after_resume(frame, files)
    if place["attempt"].gt(1).any():
        keep &= ~_recorded_again(frame, place)
    data = {name: place[name].array for name in ("cell", "rank", "stage", "replica", "host")}
    data |= {name: frame[name].array for name in frame.columns if name != "source"}
    placed = pd.DataFrame(data, copy=False)
    return placed if keep.all() else placed[keep].reset_index(drop=True)


def _redone_after_resume(frame: pd.DataFrame, files: list[RankFile]) -> NDArray[np.bool_]:
    """Which rows are training steps that a later attempt repeated after its resume."""
    never = np.iinfo(np.int64).max
    stops = np.array([never if s.stop is None else s.stop for s in files], np.int64)
    training = (frame["phase"] == "train").to_numpy()
    stop = stops[frame["source"].to_numpy()]
    beyond: NDArray[np.bool_] = training & (frame["step"].to_numpy() >= stop)
    return beyond


def _warmup_after_resume(frame: pd.DataFrame, files: list[RankFile]) -> NDArray[np.bool_]:
    """Which rows are the first training steps after a resume: they are warm-up again."""
    warm = np.array([s.first + s.warmup_steps if s.first else 0 for s in files], np.int64)
    training = (frame["phase"] == "train").to_numpy()
    early: NDArray[np.bool_] = training & (
        frame["step"].to_numpy() < warm[frame["source"].to_numpy()]
    )
    return early


def _recorded_again(frame: pd.DataFrame, place: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows are of mini-batches that the same rank recorded again in a later attempt."""
    keys = place[["cell", "rank"]].assign(phase=frame["phase"].array, step=frame["step"].array)
    newest = place["attempt"].groupby([keys[k] for k in keys], observed=True).transform("max")
    return np.asarray(place["attempt"] < newest)


def rank_frame(
    frames: RankFrames,
    files: list[RankFile],
    names: list[str],
    unlike: Collection[tuple[int, int]] = (),
) -> tuple[pd.DataFrame, NDArray[Any]]:
    """The sorted frame of rank records, and how many training steps each cell repeated.

    `unlike` are cells' positions and attempts whose steps do not count, which `unlike` marks.
    """
    frames.steps["warmup"] |= _warmup_after_resume(frames.steps, files)
    aside = np.array([(file.cell, file.attempt) in unlike for file in files], bool)
    frames.steps["unlike"] = aside[frames.steps["source"].to_numpy()]
    ranks = with_ranks(frames.steps, files, frames, names)
    order = np.lexsort(
        [
            ranks["rank"].to_numpy(),
            ranks["step"].to_numpy(),
            ranks["phase"].cat.codes.to_numpy(),
            ranks["cell"].cat.codes.to_numpy(),
        ]
    )
    ranks = ranks.iloc[order].reset_index(drop=True)
    ranks["outside_s"] = ranks["wait_s"] + _blocked_s(ranks)
    ranks["waited_s"] = ranks["outside_s"].where(has_others(ranks), 0.0)
    ranks["step_s"] = step_seconds(ranks)
    beyond = frames.steps[_redone_after_resume(frames.steps, files)]
    cell_of = np.array([file.cell for file in files], np.int64)
    again = pd.DataFrame({"cell": cell_of[beyond["source"]], "step": beyond["step"].to_numpy()})
    counts = again.drop_duplicates()["cell"].value_counts()
    return ranks, counts.reindex(range(len(names)), fill_value=0).to_numpy()


def has_others(ranks: pd.DataFrame) -> pd.Series[bool]:
    """Whether each row's cell has other ranks, for which it can wait."""
    return ranks["rank"].groupby(ranks["cell"], observed=True).transform("max") > 0


def step_seconds(ranks: pd.DataFrame) -> pd.Series[float]:
    """Seconds of each rank's step: barrier to barrier, and before it what a sampled mini-batch
    took to be drawn, which is part of a step.
    """
    return ranks["wall_s"] + ranks["data_s"].where(ranks["sampled_edges"].notna(), 0.0)


def _blocked_s(ranks: pd.DataFrame) -> NDArray[np.float64]:
    """Seconds that each rank waited inside its all-reduce for the other replicas of its stage.

    Newer records count it as waiting themselves. In older ones what the replica that came last
    spent in its all-reduce is its cost, and what the others spent longer is waiting.
    """
    older = ranks["waiting_cpu_s"].isna().to_numpy()
    spent = np.where(older, ranks["allreduce_s"].to_numpy(), 0.0)
    if not (spent > 0.0).any():
        return np.zeros(len(ranks))
    keys = [ranks[name] for name in ("cell", "phase", "step", "stage")]
    cost = pd.Series(spent).groupby(keys, observed=True).transform("min")
    blocked: NDArray[np.float64] = spent - cost.to_numpy()
    return blocked


def step_frame_of_ranks(ranks: pd.DataFrame, world: NDArray[Any]) -> pd.DataFrame:
    """One row a mini-batch, over all ranks; `ranks` is sorted by cell, phase, step, rank."""
    cell, phase = ranks["cell"].cat.codes.to_numpy(), ranks["phase"].cat.codes.to_numpy()
    step = ranks["step"].to_numpy()
    new = np.ones(len(ranks), bool)
    new[1:] = (np.diff(cell) != 0) | (np.diff(phase) != 0) | (np.diff(step) != 0)
    starts = np.flatnonzero(new)
    if not starts.size:
        starts = np.array([], np.intp)
    first = ranks.iloc[starts].reset_index(drop=True)
    steps = first[["cell", "phase", "step", "epoch", "warmup", "looked", "unlike"]].copy()

    def over(values: NDArray[Any], how: np.ufunc) -> NDArray[Any]:
        return how.reduceat(values, starts) if starts.size else values[:0]

    recorded = np.diff(np.append(starts, len(ranks)))
    for name in ("wall_s", "step_s"):
        steps[name] = over(ranks[name].to_numpy(), np.maximum)
    # All stages of a replica have the same samples: count the first stage's only.
    first_stage = ranks["stage"].to_numpy() == 0
    for name in ("samples", "sampled_edges"):
        steps[name] = over(np.where(first_stage, ranks[name].to_numpy(), 0), np.add)
    with np.errstate(invalid="ignore", divide="ignore"):
        steps["bubble"] = over(ranks["waited_s"].to_numpy(), np.add) / over(
            ranks["step_s"].to_numpy(), np.add
        )
    # Of a rank on average, so that these and drawing add up to the step.
    passes = ranks["forward_s"] + ranks["backward_s"]
    for name, seconds in (
        ("forwards_s", ranks["forward_s"]),
        ("passes_s", passes),
        ("weights_s", ranks["weights_s"]),
        ("compute_s", passes + ranks["optimizer_s"]),
        ("allreduce_s", ranks["allreduce_s"] - (ranks["outside_s"] - ranks["wait_s"])),
        ("outside_s", ranks["outside_s"]),
    ):
        steps[name] = over(seconds.to_numpy(), np.add) / recorded
    for name in _OF_THE_SLOWEST:
        steps[name] = over(ranks[name].to_numpy(), np.fmax)
    metrics = [name for name in ranks.columns if name not in STEP_COLUMNS | _OWN_COLUMNS]
    for name in ("loss", *metrics):
        steps[name] = over(ranks[name].to_numpy(), np.fmax)
    whole = recorded == world[steps["cell"].cat.codes.to_numpy()]
    return steps if whole.all() else steps[whole].reset_index(drop=True)
