"""Whether all ranks of a cell run the same code, package versions and cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnhpc.core.errors import GnnhpcError


@dataclass(frozen=True)
class RankCode:
    """What one rank runs, and what rank 0 has claimed."""

    attempt: int | None
    """The attempt's number; None on other ranks than 0."""
    ended: int | None
    """The exit status with which all ranks end at once, if they do."""
    code: str
    versions: Mapping[str, str]
    cell: str
    host: str


def check_ranks_run_the_same(ranks: Sequence[RankCode]) -> None:
    """Raises GnnhpcError if a rank has other code, package versions or another cell than rank 0."""
    first = ranks[0]
    for rank, each in enumerate(ranks):
        for what in ("code", "versions", "cell"):
            here, there = getattr(each, what), getattr(first, what)
            if here != there:
                raise GnnhpcError(
                    f"rank {rank} on {each.host} runs other {what} ({_difference(here, there)}) "
                    f"than rank 0 on {first.host} ({_difference(there, here)})"
                )


def _difference(here: str | Mapping[str, str], there: str | Mapping[str, str]) -> str:
    """The value itself, or of versions those that the other rank does not have."""
    if isinstance(here, str) or isinstance(there, str):
        return str(here)
    names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    return ", ".join(f"{name} {here.get(name, 'missing')}" for name in names)
