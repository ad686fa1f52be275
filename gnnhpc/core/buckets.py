"""Which layers' gradients are reduced together, while the layers before them go backward."""

from __future__ import annotations

from collections.abc import Sequence


def gradient_buckets(sizes: Sequence[int], least: float) -> list[range]:
    """Neighbouring layers with at least `least` bytes of gradients, the last layers first, as that
    is the order in which gradients are there (Li et al. 2020, arXiv:2006.15704, section 3.2.3).

    `sizes` are the layers' own, in bytes. The last bucket, of the first layers, has what is left;
    first layers without any are in none.
    """
    buckets, stop, held = [], len(sizes), 0
    for layer in reversed(range(len(sizes))):
        held += sizes[layer]
        if held and (held >= least or not any(sizes[:layer])):
            buckets.append(range(layer, stop))
            stop, held = layer, 0
    return buckets
