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


@dataclass(frozen=True)
class SoFar:
    """Of all attempts up to a checkpoint."""

    suspect: Mapping[str, str] = field(default_factory=dict)
    """By check, what was found first."""
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Size and SHA-256 of what each file held, by attempt and file."""

    def with_attempt(self, name: str, checks: Sequence[Check], files: Sequence[Written]) -> SoFar:
        """And of one more attempt, whose folder has this name."""
        records = {**self.records, **by_file(files, f"{name}/")}
        return replace(self.with_checks(name, checks), records=records)

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

    def as_facts(self) -> dict[str, Any]:
        return {"suspect": dict(self.suspect), "records": {**self.records}}

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> SoFar:
        """Of a checkpoint. Raises KeyError, TypeError or ValueError for other values."""
        records = {name: dict(each) for name, each in facts["records"].items()}
        return cls(dict(facts["suspect"]), records)


def by_file(files: Sequence[Written], folder: str = "") -> dict[str, dict[str, Any]]:
    """Size and SHA-256, by `folder` and name."""
    return {f"{folder}{one.file}": {"size": one.size, "sha256": one.sha256} for one in files}
