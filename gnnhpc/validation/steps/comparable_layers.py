"""Whether a custom model can be compared with its layers in one process, and why not."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnhpc.models.seeding import fork_generators, seed_all
from gnnhpc.records.failures import line_of_user
from gnnhpc.validation.reference.batches import ReferenceBatch
from gnnhpc.validation.reference.fresh_layers import FreshLayers, called, dense
from gnnhpc.validation.verdicts import CheckError

SAME = 1e-9
"""Two outputs of a layer on one input are the same up to this relative difference."""
_USE_DTYPE = "layers are to be built with `options.dtype`"


def check_comparable(model: FreshLayers, batch: ReferenceBatch) -> None:
    """Raises CheckError, with the reason in one sentence, for layers that cannot be compared.

    A layer has to compute in float64, and to give the same output twice for one input.
    """
    doing = "building the model"
    try:
        once, again = model.build(), model.build()
        x = model.first_input(batch)
        with torch.no_grad(), fork_generators():
            for name in once:
                doing = f"layer {name}"
                outputs: list[Tensor] = []
                for seed, layers in enumerate((once, again)):
                    seed_all(seed)
                    outputs.append(dense(called(layers[name].train(), x, batch.context)))
                x = _same(name, *outputs)
    except CheckError:
        raise
    # A user's code may fail in any way.
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        line = f" ({line})" if (line := line_of_user(error)) else ""
        raise CheckError(
            f"{doing} fails in float64: {type(error).__name__}: {first}{line}; {_USE_DTYPE}"
        ) from error


def _same(name: str, one: Tensor, other: Tensor) -> Tensor:
    """What a layer gives. Raises CheckError for single precision, or two different outputs."""
    if one.dtype != torch.float64:
        raise CheckError(f"layer {name} returns {one.dtype} in a model of float64: {_USE_DTYPE}")
    if float((one - other).norm()) > SAME * float(one.norm()):
        raise CheckError(
            f"layer {name} returns two different outputs for one input, so that nothing can be "
            "compared: use gnnhpc.Dropout, whose masks follow from the seed"
        )
    return one
