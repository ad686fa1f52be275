"""Numbers of a counter and picks of neighbours in torch, on any device: bit for bit what `picks.h`
computes.

All in int64: a product of two 32-bit numbers wraps there to the same 64 bits, of which the upper
half is read by a shift and a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_BEYOND = 1 << 62
"""A number after all numbers that are picked."""


@dataclass(frozen=True)
class Key:
    """What the numbers of one layer of one step are drawn by; the nodes differ."""

    seed: int
    step: int
    layer: int


def philox(key: Key, node: Tensor, block: Tensor) -> Tensor:
    """Philox 4x32-10 of counters (node, step, layer, block): [..., 4] of the shape of these two."""
    node, block = torch.broadcast_tensors(node, block)
    a, b = node, torch.full_like(node, key.step)
    c, d = torch.full_like(node, key.layer), block
    key0, key1 = key.seed & _LOW, key.seed >> 32
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        # Those that are multiplied have 32 bits; the others may have more, which are masked then.
        a = (second >> 32 ^ b ^ key0) & _LOW
        c = (first >> 32 ^ d ^ key1) & _LOW
        b, d = second, first
        key0, key1 = (key0 + 0x9E3779B9) & _LOW, (key1 + 0xBB67AE85) & _LOW
    return torch.stack((a, b & _LOW, c, d & _LOW), -1)


def below(key: Key, node: Tensor, bound: Tensor) -> Tensor:
    """For each node [rows], numbers from 0 to less than `bound` [rows, draws], all equally likely
    (Lemire 2019, algorithm 5)."""
    rows, draws = bound.shape
    blocks = torch.arange(-(-draws // 4), device=node.device)
    numbers = philox(key, node[:, None], blocks).view(rows, -1)[:, :draws]
    product = numbers * bound
    refused = ((product & _LOW) < (1 << 32) % bound).any(1).nonzero().flatten()
    drawn = product >> 32 & _LOW
    if len(refused):
        drawn[refused] = _one_by_one(key, node[refused], bound[refused])
    return drawn


def _one_by_one(key: Key, node: Tensor, bound: Tensor) -> Tensor:
    """The same where a number may be refused, so that the next is taken: of few rows."""
    place = torch.zeros_like(node)
    drawn = torch.empty_like(bound)
    for draw, count in enumerate(bound.unbind(1)):
        least = (1 << 32) % count
        while True:
            number = philox(key, node, place // 4).gather(1, (place % 4)[:, None]).flatten()
            product = number * count
            refused = (product & _LOW) < least
            if not refused.any():
                break
            place += refused
        drawn[:, draw] = product >> 32 & _LOW
        place += 1
    return drawn


def pick(key: Key, node: Tensor, n: Tensor, k: int) -> Tensor:
    """k of the numbers 0 to n - 1 for each node [rows], ascending [rows, k]; n [rows] above k.

    Every set of k is as likely as any (R. W. Floyd, in Bentley 1987). Where k is most of n, those
    are drawn that stay out.
    """
    few = torch.minimum(n - k, n.new_full((), k))
    chosen = _floyd(key, node, n, few)
    others = _others(chosen, k)
    return others if chosen.shape[1] < k else torch.where((few < k)[:, None], others, chosen)


def _floyd(key: Key, node: Tensor, n: Tensor, k: Tensor) -> Tensor:
    """k [rows] of n [rows], ascending, and then numbers far beyond."""
    most = int(k.max()) if len(k) else 0
    draws = torch.arange(most, device=n.device)
    last = (n - k)[:, None] + draws
    beyond = draws >= k[:, None]
    drawn = below(key, node, torch.where(beyond, 1, last + 1))
    picked = torch.where(beyond, _BEYOND + draws, drawn)
    for draw in range(1, most):
        taken = (picked[:, :draw] == picked[:, draw, None]).any(1)
        picked[:, draw] = torch.where(taken, last[:, draw], picked[:, draw])
    return picked.sort(1).values


def _others(chosen: Tensor, k: int) -> Tensor:
    """The first k numbers from 0 that are not among `chosen` [rows, some], ascending."""
    # The r-th number that is left has as many chosen ones before it as have at most r left ones.
    places = torch.arange(k, device=chosen.device)
    left_before = (chosen - torch.arange(chosen.shape[1], device=chosen.device)).contiguous()
    places = places.expand(len(chosen), k).contiguous()
    return places + torch.searchsorted(left_before, places, right=True)
