"""Which runs of two configurations belong together: the same repeat on the same machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_PAIRS = 3
"""With fewer pairs, or where less than half of the runs have a partner, runs are compared
unpaired."""


@dataclass(frozen=True)
class Repeat:
    """Which repeat of a configuration a run is, and the machines that it ran on."""

    seed: int
    number: int
    hosts: frozenset[str] = frozenset()
    folder: str = ""
    """Folder of the run, where there are several."""

    def belongs_to(self, other: Repeat) -> bool:
        """Whether both are of one turn of the sweep: one's machines are among the other's."""
        same = (self.seed, self.number, self.folder) == (other.seed, other.number, other.folder)
        return same and (self.hosts <= other.hosts or other.hosts <= self.hosts)


def paired(mine: Sequence[Repeat], theirs: Sequence[Repeat]) -> list[tuple[int, int]]:
    """Positions of the runs that belong together; none where too few do.

    A sweep measures its layouts alternately, so the runs of one repeat share the machine's hour,
    and their ratio is free of it. A repeat that one side lacks, or that ran on another machine, has
    no pair.
    """
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    for i, one in enumerate(mine):
        partner = next(
            (j for j, other in enumerate(theirs) if j not in taken and one.belongs_to(other)), None
        )
        if partner is not None:
            taken.add(partner)
            found.append((i, partner))
    enough = max(FEWEST_PAIRS, (max(len(mine), len(theirs)) + 1) // 2)
    return found if len(found) >= enough else []
