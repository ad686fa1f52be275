"""The order of a stage's forwards and backwards, worked out again from the papers."""

from __future__ import annotations

from gnnhpc.core.schedule import Action, Kind
from gnnhpc.spec.experiment import Experiment


def actions(experiment: Experiment, stage: int) -> list[Action]:
    """Of one training step: GPipe (Huang et al. 2019) does all forwards first; 1F1B (Narayanan et
    al. 2019, and 2021 of several parts a stage) some, then a backward and a forward in turn;
    zero-bubble (Qi et al. 2024) is 1F1B with weights apart, which fall behind by one micro-batch
    for each stage before this one.
    """
    passes = range(experiment.microbatches * experiment.parts)
    forwards = [_nth(experiment, n, backward=False) for n in passes]
    backwards = [_nth(experiment, n, backward=True) for n in passes]
    if experiment.engine == "torchgpipe":
        return [*forwards, *backwards[::-1]]
    ahead = forwards_before_backward(experiment, stage)
    order, left = forwards[:ahead], forwards[ahead:]
    undone: list[Action] = []
    for backward in backwards:
        order.append(backward)
        if experiment.weights_apart:
            undone.append(Action("weights", backward.microbatch))
        if len(undone) > stage:
            order.append(undone.pop(0))
        order += left[:1]
        left = left[1:]
    return order + undone


def forwards_before_backward(experiment: Experiment, stage: int) -> int:
    """All under GPipe; under 1F1B one for each stage from here on, or all where there are fewer."""
    microbatches, stages = experiment.microbatches, experiment.layout.stages
    if experiment.schedule == "gpipe":
        return microbatches
    if experiment.schedule == "interleaved":
        # Until the first micro-batch is back at this stage's last part.
        return min(
            experiment.parts * microbatches,
            (experiment.parts - 1) * stages + 2 * (stages - stage - 1) + 1,
        )
    return min(microbatches, stages - stage)


def _nth(experiment: Experiment, n: int, *, backward: bool) -> Action:
    """As many micro-batches as there are stages go through one part after the other."""
    kind: Kind = "backward" if backward else "forward"
    if experiment.parts == 1:
        return Action(kind, n)
    # Fewer micro-batches than stages there are in checks alone.
    together, parts = min(experiment.layout.stages, experiment.microbatches), experiment.parts
    group, place = divmod(n, together * parts)
    part, microbatch = divmod(place, together)
    return Action(kind, group * together + microbatch, parts - 1 - part if backward else part)
