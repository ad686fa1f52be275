"""Whether what a result says of a run's configuration is what its ranks did."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from gnnhpc.check.observations import RankObservations
from gnnhpc.check.plain.actions import actions, forwards_alone, forwards_before_backward
from gnnhpc.check.plain.parts import held_by
from gnnhpc.core.schedule import Action
from gnnhpc.engines.channels import BY_GROUP, SHARED_MEMORY
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check


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
            others = [
                *(
                    _other_order(experiment, stage, found, each.leaves_weights)
                    for found in each.orders.get("train", [])
                ),
                *(
                    _difference(
                        "an evaluation", experiment, found, forwards_alone(experiment, stage)
                    )
                    for found in each.orders.get("test", [])
                ),
            ]
            for other in filter(None, others):
                return Check("engine", "invalid", f"rank {each.rank} {other}", {})
    return Check("engine", "ok", f"{wanted} ran, as it was asked for", {})


def _other_order(
    experiment: Experiment, stage: int, found: Sequence[Action], leaves: Sequence[bool]
) -> str | None:
    """How a training step's actions are not those of the schedule; None where they are.

    A part without layers that leave gradients of weights need not compute any apart.
    """
    learns = {action.part for action in found if action.kind == "backward"}
    if not learns:
        return None
    kinds = [action.kind for action in found]
    did, planned = kinds.index("backward"), forwards_before_backward(experiment, stage)
    if did != planned:
        return (
            f"did {did} forwards before its first backward, {experiment.schedule} has {planned} "
            "there"
        )
    # A part with nothing to train before it has no backward.
    wanted = [a for a in actions(experiment, stage) if a.kind == "forward" or a.part in learns]
    computed = {action.part for action in found if action.kind == "weights"}
    apart = {part for part, each in enumerate(leaves) if each} | computed
    wanted = [a for a in wanted if a.kind != "weights" or a.part in apart]
    return _difference("a step", experiment, found, wanted)


def _difference(
    of: str, experiment: Experiment, found: Sequence[Action], wanted: Sequence[Action]
) -> str | None:
    for number, (mine, its) in enumerate(itertools.zip_longest(found, wanted)):
        if mine != its:
            return (
                f"did {mine or 'nothing'} as action {number} of {of}, {experiment.schedule} has "
                f"{its or 'nothing'} there"
            )
    return None


def told(
    observations: Sequence[RankObservations], experiment: Experiment, said: dict[str, Any]
) -> Check:
    """`said` is a result's `layout`, and its provenance with `hosts`, `ranks` and `versions`."""
    wrong = []
    # Each stage's first part of the model comes before its second one.
    holders = held_by(experiment)
    held = [each.partitions or [each.layers] for each in observations[: 1 + max(holders)]]
    parts = [iter(each) for each in held]
    counts = [len(next(parts[stage], ())) for stage in holders]
    counts += [len(more) for each in parts for more in each]
    if said["balance"] != counts:
        wrong.append(f"balance {said['balance']} is told, stages held {counts} layers")
    for name, ran in (
        ("schedule", experiment.schedule),
        ("parts", experiment.virtual_stages),
        ("world_size", experiment.process_layout.world_size),
        ("threads", observations[0].threads_wanted),
    ):
        if said[name] != ran:
            wrong.append(f"{name} {said[name]} is told, {ran} ran")
    for each, facts in zip(observations, said["ranks"], strict=False):
        if facts.get("threads") not in each.threads:
            had = ", ".join(map(str, each.threads))
            wrong.append(
                f"threads {facts.get('threads')} are told of rank {each.rank}, it had {had}"
            )
        wrong += _other_transfers(each, facts.get("transfers"))
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
    return Check(
        "told", "ok", "balance, schedule, threads, hosts, versions, transfers are the ranks'", {}
    )


def _other_transfers(each: RankObservations, told: str | None) -> Iterator[str]:
    """How tensors of the native engine went between stages; torch's engine has one way."""
    if each.engine != "native":
        return
    words = [] if told is None else told.split(" and ")
    said = {SHARED_MEMORY if word == SHARED_MEMORY else BY_GROUP for word in words}
    for way in sorted(each.carried.keys() - said):
        number = each.carried[way]
        yield f"transfers of rank {each.rank} by {told} are told, {number} went by {way}"
    # Some ways are those of evaluation alone.
    if each.train_steps and each.orders.get("test"):
        for way in sorted(said - each.carried.keys()):
            yield f"transfers of rank {each.rank} by {told} are told, none went by {way}"


def slowed(observations: Sequence[RankObservations]) -> Check:
    """Modes for finding mistakes take time in every step."""
    found = [
        f"rank {each.rank} ran with {mode}" for each in observations for mode in each.slowed_by
    ]
    if found:
        return Check("slowed", "suspect", "; ".join(found), {})
    return Check("slowed", "ok", "no mode for finding mistakes was on", {})
