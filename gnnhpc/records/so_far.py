"""What an attempt that goes on from a checkpoint takes over of those before: flags and digests.

Their steps count in its measurement, so what was suspect of them is suspect of it, and their files
are to stay as they were up to the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gnnhpc.records.schema import Check
from gnnhpc.records.writer import Written

CUT_SHORT = Check(
    "cut-short",
    "suspect",
    "ended without the checks after a last step, as where it is killed: its steps count, and were "
    "held against the raw data and the optimizer's rule, not once more against the twin",
)


@dataclass(frozen=True)
class SoFar:
    """Of all attempts up to a checkpoint."""

    suspect: Mapping[str, str] = field(default_factory=dict)
    """By check, what was found first."""
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Size and SHA-256 of what each file held, by attempt and file."""
    step_s: Sequence[float] = ()
    """Of all training steps after warm-up, as rank 0 measured them."""

    def with_attempt(
        self,
        name: str,
        checks: Sequence[Check],
        files: Sequence[Written],
        step_s: Sequence[float],
    ) -> SoFar:
        """And of one more, whose folder has this name."""
        records = {**self.records, **by_file(files, f"{name}/")}
        both = (*self.step_s, *step_s)
        return replace(self.with_checks(name, checks), records=records, step_s=both)

    def with_end(self, name: str, checks: Sequence[Check]) -> SoFar:
        """And what was found at the end of an attempt, without checks if it had none."""
        return self.with_checks(name, checks or [CUT_SHORT])

    def with_checks(self, name: str, checks: Sequence[Check]) -> SoFar:
        """And what was found of an attempt later."""
        found = {c.name: f"{name}: {c.detail}" for c in checks if c.verdict == "suspect"}
        return replace(self, suspect=found | dict(self.suspect))

    def judged_with(self, checks: Sequence[Check]) -> list[Check]:
        """The checks of the attempt that went on; where these found nothing, what was suspect."""
        told = {check.name for check in checks if check.verdict in ("invalid", "suspect")}
        before = {name: why for name, why in self.suspect.items() if name not in told}
        kept = [check for check in checks if check.name not in before]
        return [*kept, *(Check(name, "suspect", why) for name, why in before.items())]

    @property
    def last_attempt(self) -> int:
        """The number of the last of them; ValueError without one."""
        return max(int(name.partition("/")[0].rpartition("-")[2]) for name in self.records)

    @classmethod
    def of_older(cls, name: str) -> SoFar:
        """Up to a checkpoint of an older version."""
        return cls(
            {CUT_SHORT.name: f"{name}: its checkpoint is older, and tells nothing of its steps"}
        )

    def as_facts(self) -> dict[str, Any]:
        return {
            "suspect": dict(self.suspect),
            "records": {**self.records},
            "step_s": [round(each, 9) for each in self.step_s],
        }

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> SoFar:
        """Of a checkpoint. Raises KeyError, TypeError or ValueError for other values."""
        records = {name: dict(each) for name, each in facts["records"].items()}
        return cls(dict(facts["suspect"]), records, tuple(map(float, facts["step_s"])))


def by_file(files: Sequence[Written], folder: str = "") -> dict[str, dict[str, Any]]:
    """Size and SHA-256, by `folder` and name."""
    return {f"{folder}{one.file}": {"size": one.size, "sha256": one.sha256} for one in files}
