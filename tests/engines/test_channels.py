"""Shared-memory channels deliver every tensor once, whole and in order, or report its loss.

On real ranks, as the two ends are in processes of their own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
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
from tests.tools.ranks import run_ranks

pytestmark = pytest.mark.distributed
SLOTS, ROWS = 4, 1_000
BYTES = 4 * ROWS


def joined() -> tuple[Mesh, int, GroupChannel]:
    """This rank of two, the other one, and the channel that names the memory."""
    mesh = join(read_environment(), Layout(1, 2), torch.device("cpu"))
    peer = 1 - mesh.rank
    return mesh, peer, GroupChannel(peer, mesh.link("forward", peer))


def ends(slot_bytes: int = BYTES) -> tuple[Mesh, SharedSender | SharedReceiver]:
    mesh, peer, notifier = joined()
    kind = SharedReceiver if mesh.rank else SharedSender
    end = kind(SLOTS, slot_bytes, mesh.peers[peer], notifier)
    end.open()
    return mesh, end


def numbered(number: int, rows: int = ROWS) -> torch.Tensor:
    return torch.arange(rows, dtype=torch.float32) + number


def sent_and_taken(cases: list[tuple[int, int]]) -> list[int]:
    """Of so many tensors of so many rows, how many came as they were sent.

    The sender goes around its slots many times, and is a whole round ahead at times.
    """
    mesh, peer, notifier = joined()
    found = []
    for rows, count in cases:
        right = 0
        tensor = torch.empty(rows)
        if mesh.rank == 0:
            sending = SharedSender(SLOTS, 4 * rows, mesh.peers[peer], notifier)
            sending.open()
            for number in range(count):
                assert sending.send(tensor.copy_(numbered(number, rows))).is_completed()
        else:
            receiving = SharedReceiver(SLOTS, 4 * rows, mesh.peers[peer], notifier)
            receiving.open()
            for number in range(count):
                if number % 500 == 7:
                    time.sleep(0.01)
                receiving.receive(tensor).wait()
                right += torch.equal(tensor, numbered(number, rows))
        found.append(right)
        mesh.barrier()
    leave()
    return found


def test_every_tensor_comes_once_whole_and_in_order() -> None:
    cases = [(1, 10_000), (ROWS, 1_500), (1_000_001, 20)]
    assert spawn(sent_and_taken, 2, cases)[1] == [count for _, count in cases]


def by_receiver_and_sender() -> list[float]:
    """Steps through the classes that engines call, over two buffers for four tensors."""
    mesh, end = ends()
    found = []
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
    leave()
    return found


def test_engines_take_what_was_sent() -> None:
    _, found = spawn(by_receiver_and_sender, 2)
    assert found == [2.0 + 10 * step + number for step in range(3) for number in range(SLOTS)]


def no_room() -> list[int]:
    """How many a sender can send while nothing is taken, as counted by the channel."""
    mesh, end = ends()
    found = []
    if isinstance(end, SharedSender):
        while end._slots.send(numbered(len(found)), 20):
            found.append(len(found))
    mesh.barrier()
    if isinstance(end, SharedReceiver):
        into = torch.empty(ROWS)
        for number in range(SLOTS):
            end.receive(into).wait()
            assert torch.equal(into, numbered(number))
    mesh.barrier()
    leave()
    return found


def test_what_was_not_taken_is_never_overwritten() -> None:
    assert spawn(no_room, 2)[0] == list(range(SLOTS))


def too_few_bytes() -> str:
    mesh, end = ends()
    said = ""
    if isinstance(end, SharedSender):
        end.send(torch.zeros(1))
        try:
            end.send(torch.zeros(ROWS + 1))
        except RuntimeError as error:
            said = str(error)
    else:
        try:
            end.take(torch.zeros(ROWS))
        except RuntimeError as error:
            said = str(error)
    mesh.barrier()
    leave()
    return said


def test_a_message_of_other_size_is_no_message() -> None:
    said = [f"a message of other size than {count} bytes, as planned" for count in (4004, 4000)]
    assert spawn(too_few_bytes, 2) == said


def lost(which: int) -> None:
    """Print the error of a rank that waits for another, which is killed."""
    mesh, end = ends()
    mesh.barrier()
    if mesh.rank == which:
        if isinstance(end, SharedSender):
            end.send(numbered(7))
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    into = torch.zeros(ROWS)
    taken = []
    try:
        while True:
            if isinstance(end, SharedSender):
                end.send(into)
            else:
                end.receive(into).wait()
                taken.append(float(into[0]))
    except RuntimeError as error:
        print(error, taken, flush=True)
    os._exit(0)


@pytest.mark.quick("receiver")
@pytest.mark.parametrize(("killed", "taken"), [(0, [7.0]), (1, [])], ids=["sender", "receiver"])
def test_a_rank_that_is_killed_is_missed_and_named(killed: int, taken: list[float]) -> None:
    """By the receiver once it has what was sent, by the sender when there is no room."""
    command = f"from tests.engines.test_channels import lost; lost({killed})"
    outputs = run_ranks([sys.executable, "-c", command], 2, check=False)
    assert outputs[killed].returncode == -signal.SIGKILL
    said = f"Connection closed by peer: rank {killed} has ended {taken}\n"
    # gloo prints lines of its own before it in some releases of torch.
    assert outputs[1 - killed].stdout.endswith(said), outputs[1 - killed].stderr


def without_memory() -> list[float]:
    """Where files, and so memory that is one, may not be so large: then they come by the group."""
    mesh, peer, notifier = joined()
    if mesh.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, resource.RLIM_INFINITY))
    end = (SharedReceiver if mesh.rank else SharedSender)(SLOTS, BYTES, mesh.peers[peer], notifier)
    end.open()
    assert not end.shares
    found = []
    if isinstance(end, SharedSender):
        sender = Sender(end)
        for number in range(SLOTS):
            sender.send(numbered(number))
        sender.flush()
    else:
        receiver = Receiver(end, [torch.empty(ROWS) for _ in range(2)])
        receiver.expect(SLOTS)
        for _ in range(SLOTS):
            taken = receiver.take()
            found.append(float(taken[0]))
            receiver.release(taken)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    mesh.barrier()
    leave()
    return found


def test_a_process_that_may_not_have_the_memory_sends_by_its_group() -> None:
    assert spawn(without_memory, 2) == [[], [0.0, 1.0, 2.0, 3.0]]
