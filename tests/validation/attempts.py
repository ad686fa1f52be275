"""A real attempt's record files, and damaged copies of them with digests that fit."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check
from gnnhpc.validation.record_audit import audit_attempt

Line = dict[str, Any]


@dataclass
class Files:
    """What the files of an attempt hold, to be edited."""

    ranks: list[list[Line]]
    result: dict[str, Any]

    def steps(self, rank: int) -> list[Line]:
        return [line for line in self.ranks[rank] if line["kind"] == "step"]

    @property
    def every_step(self) -> list[Line]:
        return [step for rank in range(len(self.ranks)) for step in self.steps(rank)]

    def processors(self, rank: int, **changes: Any) -> None:
        """Give a rank a record of its processors: two CPUs that it has for itself by default."""
        detail = {
            "cpus": [2 * rank, 2 * rank + 1],
            "system": "one machine",
            "threads": self.ranks[rank][0]["threads"],
            "seconds": 10.0,
            "by_anybody_s": 10.0,
            "by_process_s": 10.0,
            "resolution_s": 0.04,
        }
        event = {"name": "processors", "at_s": 0.0, "detail": detail | changes, "kind": "event"}
        self.ranks[rank] = [x for x in self.ranks[rank] if x.get("name") != "processors"] + [event]


Edit = Callable[[Files], object]


def edited(attempt: AttemptPaths, root: Path, edit: Edit) -> AttemptPaths:
    """A copy of an attempt's files after `edit`, as if they had been written so."""
    folder = root / attempt.cell / attempt.root.name
    shutil.copytree(attempt.root, folder, ignore=shutil.ignore_patterns("checkpoints"))
    paths = AttemptPaths(folder)
    result = json.loads(paths.result.read_text())
    result.pop("digest")
    world_size = result["layout"]["world_size"]
    files = Files([_lines(paths.records(rank)) for rank in range(world_size)], result)
    edit(files)
    for rank, lines in enumerate(files.ranks):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        paths.records(rank).write_text(text)
        entry = {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        result["records"][paths.records(rank).name] = entry
    result["audit"] = []
    Result(**result).write(paths.result)
    return paths


def _lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def faults(paths: AttemptPaths) -> dict[str, Check]:
    """The checks of an attempt that are not passed, by name."""
    checks = audit_attempt(paths)
    return {each.name: each for each in checks if each.verdict not in ("ok", "unknown")}
