"""Ways to change our code in a running process."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gnnhpc.check.watches.choice import FIRST, drawn
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import vig, vig_layers
from gnnhpc.kernels.vig_torch import Moved, Statistics


def rank() -> int:
    """This process's rank."""
    return int(os.environ["RANK"])


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace `owner.name` by `change(true, *args, **kwargs)`.

    A function is replaced in every module of gnnhpc that has imported it.
    """
    true = getattr(owner, name)

    @functools.wraps(true)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(true, *args, **kwargs)

    replace(owner, name, changed)


def replace(owner: Any, name: str, new: Any) -> None:
    """Set `owner.name`, and what modules of gnnhpc have imported as it."""
    true = getattr(owner, name)
    setattr(owner, name, new)
    if isinstance(owner, type):
        return
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("gnnhpc.") and getattr(module, name, None) is true:
            setattr(module, name, new)


def statistics_moved(change: Callable[[Statistics, Statistics, float, int], None]) -> None:
    """Call `change(old, new, momentum, rows)` where a ViG layer's forward has moved the running
    statistics of its two BatchNorms, which have the same momentum."""

    def forward(true: Any, x: Tensor, *args: Any) -> Any:
        moved = next((each for each in args if isinstance(each, Moved)), None)
        if moved is None:
            return true(x, *args)
        old = Statistics._make(each.clone() for each in moved.statistics)
        result = true(x, *args)
        change(old, moved.statistics, moved.momentum[0], len(x))
        return result

    around(vig, "forward", forward)

    def together(true: Any, layers: vig_layers.Layers, x: Tensor, *, moves: bool) -> Any:
        told = [each.moved for each in layers._layers] if moves else []
        old = [Statistics._make(each.clone() for each in moved.statistics) for moved in told]
        result = true(layers, x, moves=moves)
        for before, moved in zip(old, told, strict=True):
            change(before, moved.statistics, moved.momentum[0], x.shape[0] * x.shape[1])
        return result

    around(vig_layers.Layers, "forward", together)


def is_unseen(experiment: Experiment, step: int) -> bool:
    """Whether no close look is drawn for a step in the middle of a run of images."""
    assert experiment.batch_size is not None
    together = experiment.batch_size * experiment.layout.replicas
    per_epoch = experiment.data.facts().train // together
    middle = FIRST <= step < experiment.train_steps - 1
    return middle and not drawn(experiment.seed, "train", step, per_epoch)


class Steps:
    """Counts this process's training steps, of whatever engine, from 1."""

    def __init__(self) -> None:
        self.taken = 0
        from gnnhpc.engines.native import NativeEngine
        from gnnhpc.engines.sequential import SequentialEngine
        from gnnhpc.engines.torch_pipelining import PipeliningEngine
        from gnnhpc.engines.torchgpipe import TorchgpipeEngine

        for engine in (NativeEngine, SequentialEngine, PipeliningEngine, TorchgpipeEngine):
            around(engine, "train_step", self._count)

    def _count(self, true: Any, *args: Any) -> Any:
        self.taken += 1
        return true(*args)

    @property
    def late(self) -> bool:
        """Past the steps of a check at the start."""
        return self.taken > 4
