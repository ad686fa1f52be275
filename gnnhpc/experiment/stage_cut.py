"""An experiment's layers on paper, and which stage holds which of them."""

from __future__ import annotations

from collections.abc import Sequence

from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs, check_outline, hops
from gnnhpc.experiment.balance import balance_layers, stage_slices
from gnnhpc.experiment.experiment import Experiment


def outline(experiment: Experiment, where: object = "spec") -> LayerSpecs:
    """The layers of the model on the experiment's data; InputError where they do not fit.

    Embeddings are what goes into the log-softmax of a model that ends with one.
    """
    facts = experiment.facts
    layers = experiment.model.outline(facts)
    if experiment.outputs == "embeddings" and layers[-1].kind == "log_softmax":
        layers = layers[:-1]
    layers = check_outline(layers, facts, f"{where}: model {experiment.model.name}")
    if experiment.sampling is not None:
        found = list(experiment.sampling.fanouts)
        if len(found) != hops(layers):
            allowed = f"{hops(layers)} numbers, one for each layer that uses neighbours"
            raise InputError(where, "sampling.fanouts", found, allowed)
    return layers


def cut(
    experiment: Experiment,
    layers: Sequence[LayerSpec] | None = None,
    costs: Sequence[float] | None = None,
    transfer: Sequence[float] | None = None,
    where: object = "spec",
) -> list[range]:
    """Which layers each virtual stage of the model holds; a stage is one, or has several.

    The experiment's `balance` decides if it lists counts. Else layers are balanced by `costs` and
    `transfer` (of sending a layer's output on), in seconds of a profile, or without them by the
    costs in the outline. Raises InputError for more virtual stages than layers, or counts whose
    sum is not the number of layers.
    """
    if layers is None:
        layers = outline(experiment, where)
    layout, balance = experiment.layout, experiment.balance
    if layout.stages > len(layers):
        raise InputError(where, "layout", layout, f"at most {len(layers)} stages, one a layer")
    total = experiment.total_virtual_stages
    if total > len(layers):
        allowed = (
            f"at most {len(layers) // layout.stages} a stage of {layout}: {len(layers)} layers"
        )
        raise InputError(where, "virtual_stages", experiment.virtual_stages, allowed)
    if isinstance(balance, tuple):
        if sum(balance) != len(layers):
            allowed = f"counts that add up to {len(layers)}"
            raise InputError(where, "balance", list(balance), allowed)
        return stage_slices(balance)
    costs = costs or [layer.cost for layer in layers]
    return stage_slices(balance_layers(costs, total, transfer))
