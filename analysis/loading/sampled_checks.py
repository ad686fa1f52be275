"""Whether records of mini-batches of nodes, links or graphs are possible.

An epoch is all of them that are trained on, in mini-batches of `batch_size` a replica; its last one
has what is left, cut into parts that differ by one at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.loading.attempts import Attempt
from analysis.loading.rank_files import RankFile
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment

Rows = dict[str, NDArray[Any]]
"""Columns of step records by name, of one file."""
DRAWN = ("sample_s", "gather_s", "sampled_edges")
"""What only records of mini-batches that are made within their step have."""
_PLACES = {"features_on": ("host", "pinned", "device"), "graph_on": ("host", "device")}
"""Of a sampled graph; on a CPU the first alone."""
_CLOCK_S = 1e-4
"""Between two readings of a clock."""


def impossible(rows: Rows, place: int, file: RankFile, name: str, allowed: str) -> InputError:
    """The error for one field of one step's record."""
    where = f"{file.path}: {rows['phase'][place]} step {rows['step'][place]}"
    return InputError(where, name, rows[name][place], allowed)


def check_sampled(
    rows: Rows,
    file: RankFile,
    header: Mapping[str, Any] | None,
    experiment: Experiment,
    attempt: Attempt,
) -> None:
    """Of a sampled cell or one of many graphs: its training steps; it evaluates all at once.

    Raises InputError for an epoch or a number of samples that is not the step's, and for a record
    that does not say how many edges there were: its step would seem shorter than it was.
    """
    assert experiment.batch_size is not None
    mine = {name: values[rows["phase"] == "train"] for name, values in rows.items()}
    _check_making(mine, file, experiment, within=_made_within(attempt, experiment))
    what = "graphs" if experiment.data.facts().kind == "graphs" else "nodes"
    what = what if experiment.task is None else "links"
    samples = _train_samples(attempt, what)
    replicas = experiment.layout.replicas
    replica = int((header or {}).get("replica", 0))
    together = experiment.batch_size * replicas
    a_epoch = -(-samples // together)
    epoch, number = np.divmod(mine["step"], a_epoch)
    wrong = np.flatnonzero(mine["epoch"] != epoch)
    if len(wrong):
        allowed = f"{epoch[wrong[0]]}: an epoch is {a_epoch} steps"
        raise impossible(mine, wrong[0], file, "epoch", allowed)
    left = np.minimum(together, samples - number * together)
    share = left * (replica + 1) // replicas - left * replica // replicas
    wrong = np.flatnonzero(mine["samples"] != share)
    if len(wrong):
        allowed = f"{share[wrong[0]]}: an epoch is {samples} {what}, {together} a step"
        raise impossible(mine, wrong[0], file, "samples", allowed)


def _made_within(attempt: Attempt, experiment: Experiment) -> bool:
    """Whether the rank's own thread makes its mini-batches, so that nothing does in advance.

    Raises InputError for a graph that lies where it cannot; older results do not say where.
    """
    assert attempt.result is not None
    told = attempt.result.graph
    for key, places in _PLACES.items():
        allowed = places if experiment.device == "gpu" else places[:1]
        if key in told and told[key] not in allowed:
            where = attempt.paths.result
            raise InputError(where, f"graph.{key}", repr(told[key]), " or ".join(allowed))
    sampling = experiment.sampling
    return sampling is None or not sampling.workers or told.get("graph_on") == "device"


def _check_making(mine: Rows, file: RankFile, experiment: Experiment, *, within: bool) -> None:
    """How long mini-batches took to be made: some time, and within their step less than it waited.

    When other processes draw, nobody knows how long.
    """
    sampling = experiment.sampling
    unknown = not within and sampling is not None and sampling.sampler != "ours"
    for name in DRAWN[:2]:
        seconds = mine[name]
        none = np.isnan(seconds) if unknown and name == "sample_s" else False
        wrong = np.flatnonzero(~(none | (np.isfinite(seconds) & (seconds > 0))))
        if len(wrong):
            raise impossible(mine, wrong[0], file, name, "seconds above 0, as making it took some")
    edges = mine["sampled_edges"]
    wrong = np.flatnonzero(~(np.isfinite(edges) & (edges >= 0)))
    if len(wrong):
        allowed = "a number from 0, of a mini-batch that is made within its step"
        raise impossible(mine, wrong[0], file, "sampled_edges", allowed)
    if within or unknown:
        made = np.nansum([mine["sample_s"], mine["gather_s"]], axis=0)
        wrong = np.flatnonzero(mine["data_s"] < made - _CLOCK_S)
        if len(wrong):
            allowed = (
                f"{made[wrong[0]]:.6f} or more, as the rank itself made that of its mini-batch"
            )
            raise impossible(mine, wrong[0], file, "data_s", allowed)


def _train_samples(attempt: Attempt, what: str) -> int:
    """As the result says; without it neither an epoch nor its last mini-batch is known."""
    assert attempt.result is not None
    key = f"train_{what}"
    found = attempt.result.graph.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        where = attempt.paths.result
        raise InputError(where, f"graph.{key}", repr(found), f"how many {what} are trained on")
    return found
