"""Whether what a result says of a run's configuration is what its ranks did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnnhpc.check.observations import RankObservations
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check
from gnnhpc.spec.experiment import Experiment


def engine(experiment: Experiment, observations: Sequence[RankObservations]) -> Check:
    """The engine and the schedule that were asked for ran."""
    layout = experiment.layout
    wanted = experiment.engine if layout.stages > 1 else "sequential"
    for each in observations:
        if each.engine != wanted:
            detail = f"rank {each.rank} ran the {each.engine} engine, {wanted} was asked for"
            return Check("engine", "invalid", detail, {})
    if layout.stages > 1:
        for each in observations:
            stage = experiment.process_layout.stage_of(each.rank)
            first = _forwards_before_backward(experiment, stage)
            other = {found for found in each.forwards_before_backward if found != first}
            if other:
                detail = (
                    f"rank {each.rank} did {sorted(other)[0]} forwards before its first backward, "
                    f"{experiment.schedule} has {first} there"
                )
                return Check("engine", "invalid", detail, {})
    return Check("engine", "ok", f"{wanted} ran, as it was asked for", {})


def _forwards_before_backward(experiment: Experiment, stage: int) -> int:
    """GPipe (Huang et al. 2019) has all; 1F1B (Narayanan et al. 2019) one for each stage from here
    on, or all where there are fewer."""
    if experiment.schedule == "gpipe":
        return experiment.microbatches
    return min(experiment.microbatches, experiment.layout.stages - stage)


def told(observations: Sequence[RankObservations], layout: Layout, said: dict[str, Any]) -> Check:
    """`said` is a result's `layout`, `hosts`, `ranks` and `versions`."""
    wrong = []
    held = [part for each in observations for part in each.partitions or [each.layers]]
    counts = [len(part) for part in held[: layout.stages]]
    if said["balance"] != counts:
        wrong.append(f"balance {said['balance']} is told, stages held {counts} layers")
    hosts = [each.host for each in observations]
    for name, found in (
        ("hosts", said["hosts"]),
        ("ranks' hosts", [each.get("host") for each in said["ranks"]]),
    ):
        if list(found) != hosts:
            wrong.append(f"{name} {found} are told, ranks ran on {hosts}")
    for each in observations:
        for package, loaded in each.loaded.items():
            version = said["versions"].get(package)
            if version is not None and version.split("+")[0] != loaded.split("+")[0]:
                wrong.append(f"{package} {version} is told, rank {each.rank} had loaded {loaded}")
    if wrong:
        return Check("told", "invalid", wrong[0], {"found": len(wrong)})
    return Check("told", "ok", "balance, hosts and versions are those of the ranks", {})


def slowed(observations: Sequence[RankObservations]) -> Check:
    """Modes for finding mistakes take time in every step."""
    found = [
        f"rank {each.rank} ran with {mode}" for each in observations for mode in each.slowed_by
    ]
    if found:
        return Check("slowed", "suspect", "; ".join(found), {})
    return Check("slowed", "ok", "no mode for finding mistakes was on", {})
