"""Whether a custom model can be compared with its layers in one process, and why not."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from gnnhpc.models.seeding import fork_generators, seed_all
from gnnhpc.records.failures import line_of_user
from gnnhpc.validation.reference.batches import ReferenceBatch
from gnnhpc.validation.reference.fresh_layers import FreshLayers, called, dense, parameters_of
from gnnhpc.validation.verdicts import CheckError

SAME = 1e-9
"""Two outputs of a layer on one input are the same up to this relative difference."""
_USE_DTYPE = "build layers with `options.dtype`"


def check_comparable(model: FreshLayers, batch: ReferenceBatch) -> None:
    """Raises CheckError, with the reason in one sentence, for layers that cannot be compared.

    A layer has to compute in float64, and to give the same output twice for one input.
    """
    try:
        once, again = model.build(), model.build()
    # A user's code may fail in any way.
    except Exception as error:
        raise CheckError(f"the model cannot be built: {in_words(error)}") from error
    for name, parameter in parameters_of(once).items():
        if parameter.requires_grad and parameter.dtype != torch.float64:
            kind = _name(parameter.dtype)
            raise CheckError(f"parameter {name} is {kind} in a model of float64: {_USE_DTYPE}")
    x = model.first_input(batch)
    with torch.no_grad(), fork_generators():
        for name in once:
            outputs: list[Tensor] = []
            for number, layers in enumerate((once, again)):
                seed_all(number)
                try:
                    outputs.append(dense(called(layers[name].train(), x, batch.context)))
                except Exception as error:
                    raise CheckError(f"layer {name} fails: {in_words(error)}") from error
            x = outputs[0]
            if x.dtype != torch.float64:
                returns = f"layer {name} returns {_name(x.dtype)} in a model of float64"
                raise CheckError(f"{returns}: {_USE_DTYPE}")
            if float((x - outputs[1]).norm()) > SAME * float(x.norm()):
                raise CheckError(
                    f"layer {name} returns two different outputs for one input, so that nothing "
                    "can be compared: use gnnhpc.Dropout, whose masks follow from the seed"
                )


def in_words(error: Exception) -> str:
    """The error, the line of the user's file, and advice where it is about kinds of numbers."""
    first = (str(error).splitlines() or [""])[0]
    line = line_of_user(error)
    place = f" ({line})" if line else ""
    advice = f"; {_USE_DTYPE}" if re.search("dtype|float|double", first, re.IGNORECASE) else ""
    return f"{type(error).__name__}: {first}{place}{advice}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
