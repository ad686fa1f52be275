"""Whether a forward is computed again, in backward, because its activations were not kept.

It begins from what the first forward began from, as a layer may use the buffers that it moves, and
must leave no second trace: running statistics have been moved, and what watches layers by hooks has
seen it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

Buffers = list[tuple[nn.Module, str, Tensor]]
"""Each with the module that has it, by its name there."""


class _OfThread(threading.local):
    recomputing = False


_of_thread = _OfThread()


def is_recomputing() -> bool:
    """Whether the calling thread computes a forward again."""
    return _of_thread.recomputing


def copied_buffers(modules: Iterable[nn.Module]) -> Buffers:
    """The modules' own, as they are now."""
    return [(m, name, b.clone()) for m in modules for name, b in m.named_buffers(recurse=False)]


@contextlib.contextmanager
def recomputing(buffers: Buffers) -> Iterator[None]:
    """Around a forward that is computed again, once, from `buffers`, which the first one had.

    Present ones are put aside, not copied back: autograd may have saved them, and takes a value
    that is written for a change.
    """
    held = [(module, name, getattr(module, name)) for module, name, _ in buffers]
    for module, name, buffer in buffers:
        setattr(module, name, buffer)
    _of_thread.recomputing = True
    try:
        yield
    finally:
        _of_thread.recomputing = False
        for module, name, buffer in held:
            setattr(module, name, buffer)
