"""What a study concludes, and whether our intervals bear it out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from analysis.statistics.intervals import Interval
from analysis.statistics.pairs import FEWEST_PAIRS

Judged = Literal["holds", "does not hold", "cannot be told", "not measured"]


@dataclass(frozen=True)
class Claim:
    """A conclusion about one quantity, which is `nothing` where it makes no difference."""

    text: str
    table: str
    """The published table that it is drawn from."""
    quantity: str
    wanted: Literal["more", "less", "either"] = "more"
    """On which side of `nothing` the quantity lies if the conclusion holds."""
    nothing: float = 1.0
    phase: str = "train"
    negligible: float | None = None
    """Less than this is as good as `nothing`; None where any difference counts."""
    of_devices: bool = False
    """Whether it is about ranks or stages that have a device each, and data workers beside them."""


@dataclass(frozen=True)
class Finding:
    """One comparison that a conclusion rests on; `ours` is None where a run has no such cells."""

    claim: Claim
    setting: str
    published: float | None = None
    ours: Interval | None = None
    runs: int = 0
    """Of the side that has fewer."""
    run: str = ""
    """Which rows of ours were compared."""
    bound: float | None = None
    shares_processors: bool = False
    """Whether stages of a pipeline, or replicas, had to take turns."""
    sharing: str = "stages"
    """Which of these."""

    def beside(self, published: float | None) -> Finding:
        """The same beside a published number."""
        return replace(self, published=published)

    @property
    def judged(self) -> Judged:
        """From an interval over three runs or more alone."""
        ours, claim = self.ours, self.claim
        if ours is None:
            return "not measured"
        if self.runs < FEWEST_PAIRS or ours.low is None or ours.high is None:
            return "cannot be told"
        if claim.of_devices and self.shares_processors:
            return "cannot be told"
        if self._is_negligible:
            return "does not hold"
        if not ours.excludes(claim.nothing):
            return "cannot be told"
        found = "more" if ours.low > claim.nothing else "less"
        return "holds" if claim.wanted in ("either", found) else "does not hold"

    @property
    def _is_negligible(self) -> bool:
        ours, least = self.ours, self.claim.negligible
        if ours is None or ours.low is None or ours.high is None or least is None:
            return False
        return max(ours.high - self.claim.nothing, self.claim.nothing - ours.low) < least

    @property
    def verdict(self) -> str:
        """In words, with the reason where nothing can be told."""
        ours = self.ours
        if ours is None or self.judged != "cannot be told":
            known = self.judged == "does not hold" and self._is_negligible
            less = f", the difference is less than {self.claim.negligible:g}" if known else ""
            return f"{self.claim.text}: {self.judged}{less}"
        why = f"the interval contains {self.claim.nothing:g}"
        if ours.low is None or ours.high is None:
            why = f"no interval, {ours.basis}"
        elif self.claim.of_devices and self.shares_processors:
            why = f"its {self.sharing} took turns on fewer processors"
        elif self.runs < FEWEST_PAIRS:
            why = f"{self.runs} runs are fewer than {FEWEST_PAIRS}"
        return f"{self.claim.text}: cannot be told, {why}"
