"""An experiment's layers on paper, and which stage holds which."""

from __future__ import annotations

from collections.abc import Sequence

from gnnhpc.core import outline as paper
from gnnhpc.core.outline import LayerOutline, Outlines
from gnnhpc.spec.experiment import Experiment


def outline(experiment: Experiment, where: object = "spec") -> Outlines:
    """The layers of the model on the experiment's data; InputError for layers that do not chain."""
    layers = experiment.model.outline(experiment.data.facts())
    return paper.check_outline(layers, f"{where}: model {experiment.model.name}")


def cut(
    experiment: Experiment,
    layers: Sequence[LayerOutline] | None = None,
    costs: Sequence[float] | None = None,
    transfer: Sequence[float] | None = None,
    where: object = "spec",
) -> list[range]:
    """Which layers each stage holds; `gnnhpc.core.outline.cut` says by what.

    Raises InputError for more stages than layers, or a balance that does not add up.
    """
    return paper.cut(
        outline(experiment, where) if layers is None else layers,
        experiment.layout,
        experiment.balance,
        costs=costs,
        transfer=transfer,
        where=where,
    )
