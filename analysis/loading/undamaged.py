"""Sets damaged cells apart: what is wrong with each in a line, and the records of all others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.loading.attempts import Attempt
from analysis.loading.rank_files import RankFile, RankFrames, read_rank_files
from analysis.loading.record_checks import check_records
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell


@dataclass(frozen=True)
class Undamaged:
    """The files that hold what they should, with their records."""

    files: list[RankFile]
    frames: RankFrames
    damage: dict[int, str]
    """What is wrong with each other cell, by its position in the manifest."""


def read_undamaged(
    manifest: Sequence[Cell], chosen: Sequence[Attempt | None], files: Sequence[RankFile]
) -> Undamaged:
    """Read `files`, which are of the `chosen` attempts, without those of damaged cells.

    Damage costs time: where there is any, what is left is read again.
    """
    damage = {
        number: attempt.damage
        for number, attempt in enumerate(chosen)
        if attempt is not None and attempt.damage
    }
    good = [file for file in files if file.cell not in damage]
    try:
        frames = read_rank_files(good)
    except InputError:
        damage |= _unreadable(good)
        good = [file for file in good if file.cell not in damage]
        frames = read_rank_files(good)
    readable = [None if number in damage else one for number, one in enumerate(chosen)]
    wrong = check_records(manifest, readable, good, frames)
    if wrong:
        damage |= wrong
        good = [file for file in good if file.cell not in damage]
        frames = read_rank_files(good)
    return Undamaged(good, frames, damage)


def _unreadable(files: Sequence[RankFile]) -> dict[int, str]:
    """The cells that have a file that cannot be read, and why, each read by itself."""
    found = {}
    for cell, mine in itertools.groupby(files, key=lambda file: file.cell):
        try:
            read_rank_files(list(mine))
        except InputError as error:
            found[cell] = str(error)
    return found
