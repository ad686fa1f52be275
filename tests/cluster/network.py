"""A network for a test cluster's nodes: a namespace each, joined by bridges, as slow as one likes.

Every node has eth0, by which its name is known and Slurm comes and which may be limited, and eth1,
which never is. slurmctld and slurmdbd stay outside, at the address of eth0's bridge. All of it is
named after the cluster's folder, so that it can be removed whoever made it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.daemons import SEARCH_PATH, Cluster, ClusterError, run

INTERFACES = ("eth0", "eth1")
PROGRAMS = ("ip", "tc")
INSTALL = "apt-get install iproute2"
BURST = 65_536
"""Bytes that a node may send at once, before the limit holds."""
_RECORD, _HOSTS, _BATCH = "network/record.json", "network/hosts", "network/batch"
_LINKS, _NAMESPACES = Path("/sys/class/net"), Path("/run/netns")
_ENTER = 'hostname "$1"; mount --bind "$0" /etc/hosts; shift; exec "$@"'
_TRIAL = f"""\
mount --bind /etc/hosts /etc/hosts
hostname trial
ip link add trial type bridge
ip link add one type veth peer name other
tc qdisc add dev one root tbf rate 1mbit burst {BURST} latency 50ms
"""
"""What the kernel must be able to do, in namespaces that end with the shell."""


def obstacle() -> str | None:
    """Which programs are missing, in one line; None if none."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=SEARCH_PATH) is None]
    return f"a network needs {', '.join(missing)}: {INSTALL}" if missing else None


def refusal() -> str | None:
    """What the kernel, or whoever lent us a container of it, does not allow; None if nothing."""
    done = _try("unshare", "--net", "--mount", "--uts", "sh", "-ec", _TRIAL)
    said = " ".join(done.stderr.split())
    return f"no network of the nodes' own here: {said}" if done.returncode else None


@dataclass(frozen=True)
class Network:
    """The addresses of one cluster's nodes, in 198.18.0.0/15, which RFC 2544 keeps for tests."""

    root: Path
    number: int
    """The third byte of the addresses."""
    nodes: tuple[str, ...]
    bandwidth: str | None = None
    """Of what a node sends through eth0, as tc has it, such as 200mbit; None for no limit."""

    @property
    def gateway(self) -> str:
        """Where nodes find slurmctld."""
        return f"198.18.{self.number}.254"

    def address(self, node: str, interface: str = "eth0") -> str:
        return f"198.{18 + INTERFACES.index(interface)}.{self.number}.{self._place(node)}"

    def hosts(self) -> str:
        """/etc/hosts of every node."""
        known = {"localhost": "127.0.0.1", socket.gethostname(): self.gateway}
        known |= {node: self.address(node) for node in self.nodes}
        return "".join(f"{address} {name}\n" for name, address in known.items())

    def outside(self) -> Iterable[str]:
        """Lines of `ip -batch` for the bridges, and each node's cables to them."""
        link = _link(self.root)
        for bridge in "ab":
            yield f"link add {link}{bridge} type bridge"
        yield f"addr add {self.gateway}/24 dev {link}a"
        for bridge, interface in zip("ab", INTERFACES, strict=True):
            yield f"link set {link}{bridge} up"
            for node in self.nodes:
                end, space = f"{link}{bridge}{self._place(node)}", namespace(self.root, node)
                yield f"link add {end} type veth peer name {interface} netns {space}"
                yield f"link set {end} master {link}{bridge} up"

    def inside(self, node: str) -> Iterable[str]:
        """Lines of `ip -batch` in a node's namespace."""
        yield "link set lo up"
        for interface in INTERFACES:
            yield f"addr add {self.address(node, interface)}/24 dev {interface}"
            yield f"link set {interface} up"

    def _place(self, node: str) -> int:
        return 1 + self.nodes.index(node)


def build(root: Path, nodes: Iterable[str], bandwidth: str | None = None) -> Network:
    """Make a cluster's network, and write it down in `root`; raises ClusterError."""
    if (reason := obstacle() or refusal()) is not None:
        raise ClusterError(reason)
    remove(root)
    network = Network(root, _free_number(), tuple(nodes), bandwidth)
    record = {"number": network.number, "nodes": network.nodes, "bandwidth": bandwidth}
    (root / _RECORD).parent.mkdir()
    (root / _RECORD).write_text(json.dumps(record))
    (root / _HOSTS).write_text(network.hosts())
    for node in network.nodes:
        run(root, "ip", "netns", "add", namespace(root, node))
    _batch(root, network.outside())
    for node in network.nodes:
        space = namespace(root, node)
        _batch(root, network.inside(node), "-n", space)
        if bandwidth is not None:
            limit = ("tbf", "rate", bandwidth, "burst", str(BURST), "latency", "50ms")
            run(root, "tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *limit)
    return network


def remove(root: Path) -> None:
    """Remove what `build` made, in whole or in part; nothing if it did not."""
    for link in _LINKS.glob(f"{_link(root)}*"):
        # The other end of a cable may have taken it along.
        _try("ip", "link", "del", link.name)
    for space in _NAMESPACES.glob(namespace(root, "*")):
        _try("ip", "netns", "del", space.name)
    shutil.rmtree((root / _RECORD).parent, ignore_errors=True)


def left(root: Path) -> list[str]:
    """Names of the links and namespaces that a cluster has."""
    found = [*_LINKS.glob(f"{_link(root)}*"), *_NAMESPACES.glob(namespace(root, "*"))]
    return sorted(path.name for path in found)


def read(root: Path) -> Network | None:
    """The network of a cluster, if its nodes have one."""
    try:
        record = json.loads((root / _RECORD).read_text())
    except FileNotFoundError:
        return None
    return Network(root, record["number"], tuple(record["nodes"]), record["bandwidth"])


def entering(root: Path, node: str) -> list[str]:
    """What a command begins with that runs on a node; nothing where nodes have no network."""
    if read(root) is None:
        return []
    space = _NAMESPACES / namespace(root, node)
    unshared = ("unshare", "--mount", "--uts", "sh", "-ec", _ENTER, str(root / _HOSTS), node)
    return ["nsenter", f"--net={space}", *unshared]


def sent(root: Path, node: str, interface: str) -> int:
    """Bytes that a node has sent through an interface."""
    shown = Cluster(root).run(
        "ip", "-n", namespace(root, node), "-json", "-s", "link", "show", interface
    )
    return int(json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"])


def namespace(root: Path, node: str) -> str:
    return f"gnnhpc-slurm-{_key(root)}-{node}"


def _link(root: Path) -> str:
    """What the names of links begin with, which have at most 15 characters."""
    return f"gn{_key(root)}"


def _key(root: Path) -> str:
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]


def _free_number() -> int:
    shown = _try("ip", "-4", "addr").stdout
    taken = {int(number) for number in re.findall(r"inet 198\.18\.(\d+)\.", shown)}
    return min(set(range(256)) - taken)


def _try(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command, which may fail."""
    env = os.environ | {"PATH": SEARCH_PATH}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def _batch(root: Path, lines: Iterable[str], *flags: str) -> None:
    file = root / _BATCH
    file.write_text("\n".join(lines) + "\n")
    run(root, "ip", *flags, "-batch", str(file))
