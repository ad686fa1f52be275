"""Which cells must learn the same, step by step: siblings.

The loss of a step is a function of the initial values, the samples of the step and, where
BatchNorm normalises by micro-batch, of which samples share one. Layout, engine, schedule, parts of
a stage, balance and implementation only decide who computes it.
"""

from __future__ import annotations

import json
from typing import Any

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.models.custom_model import is_custom
from gnnhpc.models.model_registry import model_class


def training_key(experiment: Experiment, *, draws_by_itself: bool = False) -> str:
    """Equal for experiments whose training losses and gradients are equal but for rounding.

    A layer of a user's that `draws_by_itself` takes what its process's generators give next, so it
    computes the same in the same place alone, called in the same order.
    """
    model = experiment.model.content()
    model.pop("implementation", None)
    return json.dumps(
        {
            "model": model,
            "data": experiment.data.content(),
            "optimizer": experiment.optimizer.model_dump(),
            "seed": experiment.seed,
            "dtype": experiment.dtype,
            # Of GPUs beside CPUs nothing has been measured yet.
            "device": experiment.device,
            "step": _one_step(experiment),
            "task": experiment.task.model_dump() if experiment.task else None,
            "place": configuration(experiment) if draws_by_itself else None,
        },
        sort_keys=True,
    )


def evaluation_key(experiment: Experiment, *, draws_by_itself: bool = False) -> str:
    """Equal for experiments whose evaluation after equally many steps is equal too.

    Running statistics move a micro-batch at a time and are averaged over replicas, so the same
    micro-batches on other replicas leave others.
    """
    parts: list[Any] = [training_key(experiment, draws_by_itself=draws_by_itself)]
    if _normalises_by_microbatch(experiment):
        parts += [experiment.layout.replicas, experiment.microbatches, experiment.batchnorm]
    return json.dumps(parts)


def configuration(experiment: Experiment) -> str:
    """The cell but for its repeat, and for what changes records alone."""
    return experiment.model_copy(update={"repeat": 0, "spans": False}).id


def _one_step(experiment: Experiment) -> list[Any]:
    """What of a step's samples must agree.

    Images: an epoch is one permutation, cut into global mini-batches, these into a part for each
    replica and that into micro-batches, all of consecutive samples; so rows of the whole and of a
    micro-batch say everything, whatever the number of replicas. A graph: a step is the whole
    graph, in halo chunks as in one piece; other chunks lose edges, and which ones depends on how
    many there are. A sampled step: our draws of a node follow from seed, step and node, so nodes of
    the whole step say everything; a library's follow from what else is drawn with it. A model of
    the user's own may do something else in each micro-batch.
    """
    replicas, microbatches = experiment.layout.replicas, experiment.microbatches
    if is_custom(experiment.model.name):
        sampled = [] if experiment.sampling is None else [experiment.sampling.model_dump()]
        return [replicas, microbatches, experiment.batch_size, experiment.chunks, *sampled]
    if experiment.sampling is not None:
        return _sampled_step(experiment, experiment.sampling)
    if experiment.batch_size is not None:
        together = experiment.batch_size * replicas
        by_microbatch = _normalises_by_microbatch(experiment)
        return [together, experiment.batch_size // microbatches if by_microbatch else None]
    whole = experiment.total_chunks == 1 or experiment.chunks == "halo"
    if whole and not _normalises_by_microbatch(experiment):
        return ["whole"]
    return [experiment.chunks, experiment.total_chunks]


def _sampled_step(experiment: Experiment, sampling: Sampling) -> list[Any]:
    """Threads that draw in advance change nothing of ours; a library's loader has its own."""
    replicas, drawn = experiment.layout.replicas, sampling.model_dump(exclude={"workers"})
    assert experiment.batch_size is not None
    together = experiment.batch_size * replicas
    if sampling.sampler == "ours":
        by_microbatch = [replicas, experiment.microbatches]
        return [together, drawn, by_microbatch if _normalises_by_microbatch(experiment) else None]
    return [together, drawn, replicas, experiment.microbatches, sampling.workers]


def _normalises_by_microbatch(experiment: Experiment) -> bool:
    """Of a user's own model nothing is known without its file."""
    known = model_class(experiment.model.name)
    return is_custom(experiment.model.name) or known is None or known.uses_batchnorm


def evaluated_after(number: int, experiment: Experiment) -> tuple[int, int]:
    """Training steps before the evaluated mini-batch `number`, and its place in its evaluation."""
    evaluation, place = divmod(number, experiment.test_steps)
    every = experiment.test_every or experiment.train_steps
    return min((evaluation + 1) * every, experiment.train_steps), place
