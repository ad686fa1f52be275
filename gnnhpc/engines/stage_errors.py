"""Mistakes of a user's layers that only show where a model is cut into stages, in words."""

from __future__ import annotations

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.engines.stage import Stage


def changes_input(error: RuntimeError) -> bool:
    """Whether a forward ended in torch's error for a change of its input."""
    return "leaf Variable" in str(error) and "in-place" in str(error)


def input_changed(stage: Stage) -> GnnhpcError:
    return GnnhpcError(
        f"layer {stage.specs[0].name} changes its input in place; as the first of its stage it "
        "is given what the stage before sent, and is to make its output anew (inplace=False)"
    )


def without_gradient(stage: Stage) -> GnnhpcError:
    """Of a stage whose backward has left its input without a gradient."""
    return GnnhpcError(
        f"no gradient goes from layer {stage.specs[0].name} to the stage before: the output of "
        "its stage does not depend on its input, as after detach() or under no_grad()"
    )
