"""Shared-memory channels deliver every tensor once, whole and in order, or report its loss.

On real ranks, as the two ends are in processes of their own.
"""

from __future__ import annotations

import time

import pytest
import torch

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.channels import GroupChannel, SharedReceiver, SharedSender
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import join, leave
from tests.tools.forked import spawn

pytestmark = pytest.mark.distributed
SLOTS = 4


CASES = [(1, 10_000), (1_000, 1_500), (1_000_001, 20)]
"""Rows, and how many tensors of so many: the sender goes around its slots many times, and is a
whole round ahead at times."""


def received_of_each() -> list[int]:
    """How many tensors came as they were sent, by a channel from rank 0 to rank 1."""
    mesh, found = join(read_environment(), Layout(1, 2), torch.device("cpu")), []
    peer = 1 - mesh.rank
    for rows, count in CASES:
        by = GroupChannel(peer, mesh.link("forward", peer))
        end = (SharedReceiver if mesh.rank else SharedSender)(SLOTS, 4 * rows, mesh.peers[peer], by)
        end.open()
        right, tensor = 0, torch.empty(rows)
        for number in range(count):
            sent = torch.arange(rows, dtype=torch.float32) + number
            if isinstance(end, SharedSender):
                assert end.send(tensor.copy_(sent)) is None
            else:
                if number % 500 == 7:
                    time.sleep(0.01)
                end.receive(tensor)()
                right += torch.equal(tensor, sent)
        mesh.barrier()
        found.append(right)
    leave(mesh)
    return found


def test_every_tensor_comes_once_whole_and_in_order() -> None:
    _, receiver = spawn(received_of_each, 2)
    assert receiver == [count for _, count in CASES]
