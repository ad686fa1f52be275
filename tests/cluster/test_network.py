"""Nodes with addresses and a bandwidth of their own: tensors travel by the site's interface."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from tests.cluster import config, network
from tests.cluster.runs import TINY_GAT, Run, User, losses

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STEPS, NODES, HIDDEN = 5, 4_000, 64
GRID = TINY_GAT | {
    "model": {"name": "gat", "layers": 2, "heads": 8, "hidden": HIDDEN // 8},
    "data": {"name": "synthetic-citation", "nodes": NODES, "edges": 16_000, "features": 16},
    "layouts": ["pp2"],
    "balance": [3, 3],
    "microbatches": [1],
    "train_steps": STEPS,
}
PAYLOAD = STEPS * 2 * 4 * NODES * HIDDEN
"""Bytes of activations and their gradients that cross the cut."""


@dataclass(frozen=True)
class Ways:
    """One sweep by the interface that the nodes' names lead to, and by the other."""

    slow: Run
    fast: Run
    slow_sent: dict[str, int]
    """Bytes that all nodes sent while the first ran, by interface."""
    fast_sent: dict[str, int]


@pytest.fixture(scope="module")
def ways(slow_network: User) -> Ways:
    def total() -> dict[str, int]:
        root = slow_network.cluster.root
        return {
            name: sum(network.sent(root, node, name) for node in config.NODES)
            for name in network.INTERFACES
        }

    runs: list[Run] = []
    counts = [total()]
    for name, site in (("slow", {}), ("fast", {"interface": "eth1"})):
        runs.append(slow_network.submit([GRID], name=name, site=dict(site)))
        runs[-1].wait_until_idle()
        counts.append(total())
    sent = [{name: b[name] - a[name] for name in b} for a, b in itertools.pairwise(counts)]
    return Ways(runs[0], runs[1], sent[0], sent[1])


def test_cells_are_valid_and_a_slow_network_changes_no_loss(ways: Ways) -> None:
    found = []
    for run in (ways.slow, ways.fast):
        (cell,) = run.cells
        result = run.result(cell)
        assert result.valid, (result.failure, result.flags)
        assert len(set(result.provenance["hosts"])) == 2
        found.append(losses(run.attempt(cell), 2))
    assert len(found[0]) == STEPS
    assert found[0] == found[1]


def test_tensors_travel_by_the_interface_of_the_site(ways: Ways) -> None:
    # Slurm's own messages are on eth0 in both.
    assert ways.slow_sent["eth0"] > PAYLOAD > 10 * ways.slow_sent["eth1"]
    assert ways.fast_sent["eth1"] > PAYLOAD > 10 * ways.fast_sent["eth0"]


def test_an_interface_that_a_node_lacks_is_named_with_those_it_has(slow_network: User) -> None:
    run = slow_network.submit([GRID], name="wrong", site={"interface": "eth7"})
    run.wait_until_idle()
    failure = run.result(run.cells[0]).failure
    assert failure is not None
    assert "GLOO_SOCKET_IFNAME: found 'eth7'; allowed: lo, eth0, eth1" in failure.error
