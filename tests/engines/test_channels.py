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
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.engines.transfers import Receiver, Sender
from tests.tools.forked import spawn

pytestmark = pytest.mark.distributed
SLOTS, ROWS = 4, 1_000


def joined() -> Mesh:
    return join(read_environment(), Layout(1, 2), torch.device("cpu"))


def end_of(mesh: Mesh, rows: int = ROWS) -> SharedSender | SharedReceiver:
    """This rank's end of a channel from rank 0 to rank 1."""
    peer = 1 - mesh.rank
    by = GroupChannel(peer, mesh.link("forward", peer))
    end = (SharedReceiver if mesh.rank else SharedSender)(SLOTS, 4 * rows, mesh.peers[peer], by)
    end.open()
    return end


def numbered(number: int, rows: int = ROWS) -> torch.Tensor:
    return torch.arange(rows, dtype=torch.float32) + number


def many(mesh: Mesh, rows: int, count: int) -> int:
    """Of so many tensors of so many rows, how many came as they were sent.

    The sender goes around its slots many times, and is a whole round ahead at times.
    """
    end, right, tensor = end_of(mesh, rows), 0, torch.empty(rows)
    for number in range(count):
        if isinstance(end, SharedSender):
            assert end.send(tensor.copy_(numbered(number, rows))) is None
        else:
            if number % 500 == 7:
                time.sleep(0.01)
            end.receive(tensor)()
            right += torch.equal(tensor, numbered(number, rows))
    mesh.barrier()
    return right


def by_the_engines_classes(mesh: Mesh) -> list[float]:
    """Three steps over two buffers for four tensors."""
    end, found = end_of(mesh), []
    if isinstance(end, SharedSender):
        sender = Sender(end)
        for step in range(3):
            for number in range(SLOTS):
                # Every second number of a longer one: what is sent need not be contiguous.
                sender.send(numbered(10 * step + number, 2 * ROWS)[::2])
            sender.flush()
    else:
        receiver = Receiver(end, [torch.empty(ROWS) for _ in range(2)])
        for _ in range(3):
            receiver.expect(SLOTS)
            for _ in range(SLOTS):
                taken = receiver.take()
                found.append(float(taken[1]))
                receiver.release(taken)
    mesh.barrier()
    return found


def nothing_is_taken(mesh: Mesh) -> int:
    """How many a sender can send until then; what it sent is whole afterwards."""
    end, count = end_of(mesh), 0
    if isinstance(end, SharedSender):
        while end._slots.send(numbered(count), 20):
            count += 1
    mesh.barrier()
    if isinstance(end, SharedReceiver):
        into = torch.empty(ROWS)
        for number in range(SLOTS):
            end.receive(into)()
            assert torch.equal(into, numbered(number))
    mesh.barrier()
    return count


CASES = [(1, 10_000), (ROWS, 1_500), (1_000_001, 20)]


def every_scenario() -> tuple[list[int], list[float], int]:
    mesh = joined()
    found = (
        [many(mesh, *case) for case in CASES],
        by_the_engines_classes(mesh),
        nothing_is_taken(mesh),
    )
    leave(mesh)
    return found


def test_every_tensor_comes_once_whole_and_in_order() -> None:
    sender, receiver = spawn(every_scenario, 2)
    sent = [2.0 + 10 * step + number for step in range(3) for number in range(SLOTS)]
    assert receiver[0] == [count for _, count in CASES]
    assert receiver[1] == sent
    assert sender[2] == SLOTS
