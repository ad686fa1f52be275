"""Process groups of gloo whose sockets one thread serves, however many groups there are.

Each device of gloo has a thread that wakes a hundred times a second, whether or not there is
something to do (`Loop::run` of gloo's transport/tcp/loop.cc), and torch makes a device for each
group: four of a pipeline's rank, that take the CPU from the thread that computes.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any

import torch.distributed as dist

from gnnhpc.distributed.addresses import asked_interfaces

BACKEND = "one-thread-gloo"


def one_thread_gloo() -> str:
    """The backend's name for `init_process_group`; groups made of its ranks have it too."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _new_group, devices=["cpu"])
    return BACKEND


def _new_group(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = _devices()
    options._threads = 2 * len(options._devices)
    group = gloo(store, rank, size, options)
    group._set_sequence_number_for_group()
    return group


@functools.cache
def _devices() -> list[Any]:
    """This process's, of the interfaces that torch would choose."""
    gloo: Any = dist.ProcessGroupGloo
    named = [gloo.create_device(interface=name) for name in asked_interfaces()]
    return named or [gloo.create_default_device()]
