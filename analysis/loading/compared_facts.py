"""Decides which cells of a run count together: those that are like the most of their study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.across.likeness import (
    LAYOUT_KEYS,
    MAY_DIFFER,
    Facts,
    in_words,
    joined_facts,
    like_groups,
)
from analysis.loading.learnt import Key
from analysis.loading.measured_facts import measured_facts, with_nones
from analysis.loading.run_folder import RunFolder


def facts_of_attempts(folder: RunFolder) -> dict[Key, Facts]:
    """Of each attempt whose records were read."""
    results = [{each.number: each.result for each in attempts} for attempts in folder.attempts_of]
    headers = {
        (number, attempt): found
        for number, by_attempt in enumerate(folder.headers)
        for attempt, found in by_attempt.items()
    }
    facts = {
        (number, attempt): measured_facts(found, results[number][attempt])
        for (number, attempt), found in headers.items()
    }
    return with_nones(facts, headers)


def unlike_resumes(folder: RunFolder, facts: Mapping[Key, Facts]) -> dict[Key, str]:
    """The attempts whose steps do not count, as the one that resumed them is unlike; in words."""
    found = {}
    for (number, attempt), mine in facts.items():
        chosen = folder.chosen[number]
        if chosen is not None and attempt != chosen.number:
            words = in_words(facts.get((number, chosen.number), {}), mine)
            if words:
                found[number, attempt] = words
    return found


def differences_from_study(
    cells: pd.DataFrame, facts: Sequence[Facts], settings: Sequence[str]
) -> list[str]:
    """How each valid cell differs from the largest group of like cells of its study, in words.

    A study is what a speedup may compare: all settings equal but the layout and `MAY_DIFFER`. Of
    groups of one size the newest is taken. Empty for cells that do not differ, or are not valid.
    """
    words = [""] * len(cells)
    for positions in _positions(
        cells, [k for k in settings if k not in (*MAY_DIFFER, *LAYOUT_KEYS)]
    ):
        groups = like_groups(
            [facts[i] for i in positions], [cells["started_at"].iloc[i] for i in positions]
        )
        reference = joined_facts([facts[positions[i]] for i in groups[0]])
        for i in positions:
            words[i] = in_words(facts[i], reference)
    return words


def unlike_cells(
    cells: pd.DataFrame, facts: Sequence[Facts], settings: Sequence[str], words: Sequence[str]
) -> list[bool]:
    """Which valid cells may not be joined with the others of their configuration.

    Of a configuration the cells count that are like the study; where none is, its own largest
    group of like cells, which then has no speedup over a baseline that is unlike.
    """
    aside = [False] * len(cells)
    for positions in _positions(cells, settings):
        kept = [i for i in positions if not words[i]]
        if not kept:
            started = [cells["started_at"].iloc[i] for i in positions]
            kept = [positions[i] for i in like_groups([facts[i] for i in positions], started)[0]]
        for i in positions:
            aside[i] = i not in kept
    return aside


def _positions(cells: pd.DataFrame, keys: Sequence[str]) -> list[list[int]]:
    """The positions of valid cells that are equal in `keys`."""
    valid = cells.reset_index(drop=True)
    valid = valid[valid["valid"].astype(bool)]
    groups = valid.groupby(list(keys), dropna=False, sort=False)
    return [[int(i) for i in part.index] for _, part in groups]
