"""Slurm's lists of nodes as names; scontrol may be missing on compute nodes."""

from __future__ import annotations

import re


def expand_nodelist(nodelist: str) -> list[str]:
    """Slurm's `n[1-3,7],gpu01` as names."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodelist):
        expanded = [""]
        for text, inside in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            choices = [text] if text else _range(inside)
            expanded = [done + choice for done in expanded for choice in choices]
        names += [name for name in expanded if name]
    return names


def _range(inside: str) -> list[str]:
    values: list[str] = []
    for item in inside.split(","):
        first, _, last = item.partition("-")
        if not last:
            values.append(first)
        else:
            values += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return values
