"""Whether a forward is computed again, in backward, because its activations were not kept.

It must leave no second trace: running statistics have been moved by the first forward, and what
watches layers by hooks has seen it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from torch import nn


class _OfThread(threading.local):
    recomputing = False


_of_thread = _OfThread()


def is_recomputing() -> bool:
    """Whether the calling thread computes a forward again."""
    return _of_thread.recomputing


@contextlib.contextmanager
def recomputing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Around a forward that is computed again; `modules` hold the buffers that it must not change.

    These are put aside, not copied back: autograd may have saved them, and takes a value that is
    written for a change.
    """
    held = [(m, name, b) for m in modules for name, b in m.named_buffers(recurse=False)]
    for module, name, buffer in held:
        setattr(module, name, buffer.clone())
    _of_thread.recomputing = True
    try:
        yield
    finally:
        _of_thread.recomputing = False
        for module, name, buffer in held:
            setattr(module, name, buffer)
