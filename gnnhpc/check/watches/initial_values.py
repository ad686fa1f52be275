"""Whether a stage begins with the values that the seed gives, each layer its own."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

from gnnhpc.check.watches.state_hashes import differing, hashes_of, named_in_words
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.generators import generators_put_back
from gnnhpc.models.model import BuildOptions


def other_initial_values(experiment: Experiment, stage: Stage) -> str | None:
    """What is not as each layer is built anew, in words; none where all is.

    A layer's seed is the first seven bytes, highest first, of the SHA-256 of "<seed>/<its name>".
    """
    options = BuildOptions(getattr(torch, experiment.dtype), experiment.batchnorm)
    wrong: list[str] = []
    frozen: list[str] = []
    with generators_put_back():
        for outline, held in zip(stage.outlines, stage.layers, strict=True):
            digest = hashlib.sha256(f"{experiment.seed}/{outline.name}".encode()).hexdigest()
            seed = int(digest[:14], 16)
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            built = experiment.model.loaded.build(outline, options)
            names = differing(
                hashes_of(built.named_parameters()), hashes_of(held.named_parameters())
            )
            wrong += [f"{outline.name}.{name}" for name in names]
            trained = {name for name, p in built.named_parameters() if p.requires_grad}
            still = {name for name, p in held.named_parameters() if not p.requires_grad}
            frozen += [f"{outline.name}.{name}" for name in sorted(trained & still)]
    if wrong:
        return f"{named_in_words(wrong)} did not begin with the values that the seed gives"
    if frozen:
        return f"{named_in_words(frozen)} would train, and is frozen"
    return None
