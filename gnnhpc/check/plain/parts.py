"""Which stage holds which part of the model, worked out again from the papers."""

from __future__ import annotations

from gnnhpc.experiment.experiment import Experiment


def held_by(experiment: Experiment) -> list[int]:
    """The stage of the processes' layout that holds each part of the model, first to last.

    One after the other, from the first again where stages have several parts (Narayanan et al.
    2021), and back from the last one under ZBV (Qi et al. 2024, section 6).
    """
    there = list(range(experiment.process_layout.stages))
    if len(there) == 1:
        return there * experiment.model_parts
    return (
        there + there[::-1] if experiment.schedule == "zbv" else there * experiment.virtual_stages
    )
