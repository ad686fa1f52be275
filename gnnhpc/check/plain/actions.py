"""The order of a stage's forwards and backwards, worked out again from the papers."""

from __future__ import annotations

from gnnhpc.core.schedule import Action, Kind
from gnnhpc.experiment.experiment import Experiment


def actions(experiment: Experiment, stage: int) -> list[Action]:
    """Of one training step: GPipe (Huang et al. 2019) does all forwards first; 1F1B (Narayanan et
    al. 2019, and 2021 of several parts a stage) some, then a backward and a forward in turn;
    zero-bubble (Qi et al. 2024) is 1F1B with weights apart, which fall behind by one micro-batch
    for each stage before this one; ZBV (ibid., section 6) has an order of its own.
    """
    if experiment.schedule == "zbv":
        return _zbv(stage, experiment.layout.stages, experiment.microbatches)
    passes = range(experiment.microbatches * experiment.virtual_stages)
    forwards = [_nth(experiment, n, backward=False) for n in passes]
    backwards = [_nth(experiment, n, backward=True) for n in passes]
    if experiment.engine == "torchgpipe":
        return [*forwards, *backwards[::-1]]
    ahead = forwards_before_backward(experiment, stage)
    order, left = forwards[:ahead], forwards[ahead:]
    undone: list[Action] = []
    for backward in backwards:
        order.append(backward)
        if experiment.split_backward:
            undone.append(Action("weights", backward.microbatch))
        if len(undone) > stage:
            order.append(undone.pop(0))
        order += left[:1]
        left = left[1:]
    return order + undone


def forwards_alone(experiment: Experiment, stage: int) -> list[Action]:
    """Of one evaluation, where nothing goes backward: each part has the micro-batches in order.

    Of several parts, as many micro-batches as there are stages go through one after the other;
    under ZBV a stage has time for some until the first one is back, then its parts take turns.
    """
    count = experiment.microbatches
    if experiment.schedule != "zbv":
        return [
            _nth(experiment, n, backward=False) for n in range(count * experiment.virtual_stages)
        ]
    ahead = 2 * (experiment.layout.stages - stage) - 1
    there, back = ([Action("forward", m, part) for m in range(count)] for part in (0, 1))
    order = there[:ahead]
    for n, one in enumerate(back):
        order += [one, *there[ahead + n : ahead + n + 1]]
    return order


def forwards_before_backward(experiment: Experiment, stage: int) -> int:
    """All under GPipe; under 1F1B one for each stage from here on, or all where there are fewer."""
    microbatches, stages = experiment.microbatches, experiment.layout.stages
    if experiment.schedule == "gpipe":
        return microbatches
    if experiment.schedule == "zbv":
        # The first part's until the second one can go on without a break, then both in turn.
        return min(microbatches, 2 * stages - 1 - stage) + min(microbatches, 1 + stage)
    if experiment.schedule == "interleaved":
        # Until the first micro-batch is back at this stage's last part.
        return min(
            experiment.virtual_stages * microbatches,
            (experiment.virtual_stages - 1) * stages + 2 * (stages - stage - 1) + 1,
        )
    return min(microbatches, stages - stage)


def _nth(experiment: Experiment, n: int, *, backward: bool) -> Action:
    """As many micro-batches as there are stages go through one part after the other."""
    kind: Kind = "backward" if backward else "forward"
    if experiment.virtual_stages == 1:
        return Action(kind, n)
    # Fewer micro-batches than stages there are in checks alone.
    together, parts = (
        min(experiment.layout.stages, experiment.microbatches),
        experiment.virtual_stages,
    )
    group, place = divmod(n, together * parts)
    part, microbatch = divmod(place, together)
    return Action(kind, group * together + microbatch, parts - 1 - part if backward else part)


def _zbv(stage: int, stages: int, microbatches: int) -> list[Action]:
    """As if there were micro-batches enough to fill the pipeline, without those there are not."""
    full, after = max(microbatches, 2 * stages - 1), stages - stage
    order: list[Action] = []

    def do(part: int, *kinds: Kind) -> None:
        """Each kind's next micro-batch in a part."""
        for kind in kinds:
            number = sum((each.kind, each.part) == (kind, part) for each in order)
            if number < full:
                order.append(Action(kind, number, part))

    for _ in range(2 * after - 1):
        do(0, "forward")
    for _ in range(stage):
        do(1, "forward")
        do(0, "forward")
    for _ in range(after):
        do(1, "forward", "backward", "weights")
    for _ in range(full - stages):
        do(0, "forward", "backward", "weights")
        do(1, "forward", "backward", "weights")
    for _ in range(stage):
        do(0, "backward")
        do(1, "backward")
    for _ in range(after):
        do(0, "backward", "weights")
    for part in (1, 0):
        for _ in range(stage):
            do(part, "weights")
    return [each for each in order if each.microbatch < microbatches]
