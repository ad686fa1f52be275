"""Whether a forward is recomputed in backward, because its activations were not kept.

A recomputed forward has no second effect: BatchNorm's running statistics have moved already.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch import nn


class _OfThread(threading.local):
    recomputing = False


_of_thread = _OfThread()


def is_recomputing() -> bool:
    """Whether the calling thread recomputes a forward."""
    return _of_thread.recomputing


@contextlib.contextmanager
def recomputing(module: nn.Module) -> Iterator[None]:
    """Around a recomputed forward of `module`, which works on copies of its buffers.

    The buffers themselves are put aside and not written: autograd may have saved them, and reports
    a value that is written as a change.
    """
    owners = [each for each in module.modules() if each._buffers]
    held = [dict(owner._buffers) for owner in owners]
    for owner, buffers in zip(owners, held, strict=True):
        owner._buffers.update({n: b if b is None else b.clone() for n, b in buffers.items()})
    _of_thread.recomputing = True
    try:
        yield
    finally:
        _of_thread.recomputing = False
        for owner, buffers in zip(owners, held, strict=True):
            owner._buffers.update(buffers)
