"""Like with like: which measurements may be joined, and in words what keeps others apart.

A fact is what a number depends on besides the experiment: code, packages, CPU, threads, kernels.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

Facts = Mapping[str, str | None]
"""Name of a fact -> its value; None or absent where it was not recorded."""

MAY_DIFFER = (
    "batch_size",
    "train_steps",
    "test_steps",
    "test_every",
    "warmup_steps",
    "batchnorm",
    "schedule",
    "virtual_stages",
    "engine",
    "checkpoint",
    "bucket_mib",
    "chunks",
    "rebuild",
    "balance",
)
"""Settings in which the cells of one study may differ, besides the layout."""
LAYOUT_KEYS = ("layout", "microbatches")


def differences(mine: Facts, other: Facts) -> dict[str, tuple[str, str]]:
    """The facts in which two measurements are known to differ, with both values.

    What either did not record is unknown, which is not a difference.
    """
    found = {}
    for name in (*mine, *(name for name in other if name not in mine)):
        here, there = mine.get(name), other.get(name)
        if here is not None and there is not None and here != there:
            found[name] = (here, there)
    return found


def in_words(mine: Facts, other: Facts) -> str:
    """Such as `threads a rank 1 beside 2; torch 2.13.0 beside 2.12.1`; empty where alike."""
    return "; ".join(
        f"{name} {here} beside {there}" for name, (here, there) in differences(mine, other).items()
    )


def alike(mine: Facts, other: Facts) -> bool:
    return not differences(mine, other)


def like_groups(facts: Sequence[Facts], started: Sequence[str]) -> list[list[int]]:
    """The positions in groups that may be joined: the largest first, of equal ones the newest.

    `started` are the times at which they were measured, as text that sorts. Everything in a group
    is alike: an unknown joins one group only, and does not bring two known values together.
    """
    members: dict[str, list[int]] = {}
    for position, each in enumerate(facts):
        known = sorted((name, value) for name, value in each.items() if value is not None)
        members.setdefault(json.dumps(known), []).append(position)

    def size_and_age(held: Sequence[int]) -> tuple[int, str]:
        return len(held), max(started[i] for i in held)

    left = sorted(members.values(), key=size_and_age, reverse=True)
    groups = []
    while left:
        group: list[int] = []
        others = []
        for held in left:
            joins = all(alike(facts[held[0]], facts[i]) for i in group)
            if joins:
                group += held
            else:
                others.append(held)
        left = others
        groups.append(sorted(group))
    return sorted(groups, key=size_and_age, reverse=True)


def joined_facts(facts: Sequence[Facts]) -> dict[str, str | None]:
    """What is known of a group of like measurements: each fact from whichever recorded it."""
    known: dict[str, str | None] = {}
    for each in facts:
        for name, value in each.items():
            if known.get(name) is None:
                known[name] = value
    return known


def values_in_words(values: Sequence[str | None]) -> str:
    """Each value with how often it was found, the most frequent first, and how often it was not."""
    counts = Counter(value for value in values if value is not None)
    parts = [
        f"{value} ({count})" if len(counts) > 1 else value for value, count in counts.most_common()
    ]
    unknown = sum(value is None for value in values)
    if unknown:
        parts.append(f"not recorded in {unknown} of {len(values)} cells")
    return ", ".join(parts)
