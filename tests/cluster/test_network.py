"""Nodes with addresses and a bandwidth of their own: what crosses a cut, by which way, how long."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import config, network, slurm
from tests.cluster.runs import TINY_GAT, TINY_VIG, Run, User, losses, steps, wait_for
from tests.cluster.slurm import Cluster, ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BYTES_PER_S = 200e6 / 8
STEPS = 5
IMAGES, SIDE, CHANNELS = 64, 32, 3
VIG = TINY_VIG | {
    "data": {"name": "synthetic-cifar10", "train": 128, "test": 64, "image_size": SIDE},
    "batch_size": IMAGES,
    "layouts": ["pp2", "pp4"],
}
NODES, HEADS, HIDDEN, CLASSES = 4_000, 8, 8, 7
GAT = TINY_GAT | {
    "model": {"name": "gat", "layers": 2, "heads": HEADS, "hidden": HIDDEN},
    "data": {"name": "synthetic-citation", "nodes": NODES, "edges": 16_000, "features": 16},
    "layouts": ["pp2"],
    "balance": [3, 3],
}
GAT_OF_FOUR = GAT | {"layouts": ["pp4"], "balance": [3, 1, 1, 1]}
_PIXELS, _HIDDEN = 4 * IMAGES * SIDE**2 * CHANNELS, 4 * NODES * HEADS * HIDDEN
CUTS = {
    "vig-pp2": [_PIXELS],
    "vig-pp4": [_PIXELS] * 3,
    "gat-pp2": [_HIDDEN],
    "gat-pp4": [_HIDDEN, _HIDDEN, 4 * NODES * CLASSES],
}
"""Bytes of a step's activations, and of their gradients, at each cut of an array's cell."""
NO_ROOM: dict[str, Any] = {"microbatches": [1], "train_steps": STEPS, "test_steps": 1}
"""While its one micro-batch travels no rank has anything to compute."""


@dataclass(frozen=True)
class Ways:
    """One sweep by the limited interface, which the nodes' names lead to, and by the other."""

    slow: Run
    fast: Run
    slow_sent: dict[str, int]
    """By interface, bytes that all nodes sent while the first ran."""
    fast_sent: dict[str, int]


@pytest.fixture(scope="module")
def user(slow_network: Cluster, tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(slow_network, tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def ways(user: User) -> Iterator[Ways]:
    def total() -> dict[str, int]:
        root = user.cluster.root
        return {
            name: sum(network.sent(root, node, name) for node in config.NODES)
            for name in network.INTERFACES
        }

    grids = [grid | NO_ROOM for grid in (VIG, GAT, GAT_OF_FOUR)]
    runs: list[Run] = []
    counts = [total()]
    for name, site in (("slow", {}), ("fast", {"interface": "eth1"})):
        runs.append(user.submit(grids, name=name, site=site))
        runs[-1].results()
        runs[-1].wait_until_idle()
        counts.append(total())
    sent = [{name: b[name] - a[name] for name in b} for a, b in itertools.pairwise(counts)]
    yield Ways(*runs, *sent)


def test_every_cell_is_valid_on_hosts_with_names_of_their_own(ways: Ways) -> None:
    for run in (ways.slow, ways.fast):
        assert {cell.array for cell in run.cells} == set(CUTS)
        for cell in run.cells:
            result = run.result(cell)
            assert result.valid, (cell.id, result.failure, result.flags)
            assert len(set(result.provenance["hosts"])) == cell.experiment.layout.world_size


def test_a_slow_network_changes_no_loss(ways: Ways) -> None:
    for cell in ways.slow.cells:
        slow, fast = (
            losses(run.attempt(cell), cell.experiment.layout.world_size)
            for run in (ways.slow, ways.fast)
        )
        assert len(slow) == STEPS
        assert slow == fast, cell.id


def test_a_rank_waits_at_least_as_long_as_its_tensors_travel(ways: Ways) -> None:
    """Rank 0 waits while its activations go on to the last stage, the others compute, and gradients
    come back, one after the other. That bytes take their time is all that is asserted: of each
    crossing those that exceed what a node may send at once.
    """
    for cell in ways.slow.cells:
        least = sum(2 * (cut - network.BURST) / BYTES_PER_S for cut in CUTS[cell.array])
        ranks = range(cell.experiment.layout.world_size)
        first, *others = (steps(ways.slow.attempt(cell), rank) for rank in ranks)
        assert len(first) == STEPS
        for waits, *computing in zip(first, *others, strict=True):
            computed = sum(step["forward_s"] + step["backward_s"] for step in computing)
            assert waits["wait_s"] >= computed + least, cell.id


def test_tensors_travel_by_the_interface_of_the_site(ways: Ways) -> None:
    payload = sum(2 * STEPS * sum(cuts) for cuts in CUTS.values())
    # Slurm's own messages, and those by which ranks find each other, are on eth0 in both.
    assert ways.slow_sent["eth0"] > payload > 10 * ways.slow_sent["eth1"]
    assert ways.fast_sent["eth1"] > payload > 10 * ways.fast_sent["eth0"]


def test_an_interface_that_a_node_lacks_is_one_line_with_those_it_has(user: User) -> None:
    run = user.submit([GAT | NO_ROOM], name="wrong", site={"interface": "eth7"})
    (cell,) = run.cells
    result = run.result(cell)
    run.wait_until_idle()
    assert result.status == "failed"
    assert result.failure is not None
    words = "GLOO_SOCKET_IFNAME: found 'eth7'; allowed: lo, eth0, eth1"
    assert words in result.failure.error
    assert words in run.logs()
    assert "Traceback" not in run.logs()
    # Of the ranks' step: one that Slurm ends before it has said so decides what srun makes of it.
    step = f"{run.job('gat-pp2')}_0.0"
    codes = ("sacct", "-n", "-P", "-j", step, "-o", "ExitCode")
    wait_for(lambda: run.cluster.run(*codes).stdout.strip() == "2:0", "exit status 2")


@pytest.mark.usefixtures("networks")
def test_a_network_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="fastest"):
        slurm.start(tmp_path / "c", networked=True, bandwidth="fastest")
    assert network.left(tmp_path / "c") == []
    assert list((tmp_path / "c").iterdir()) == []
