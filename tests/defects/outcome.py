"""Runs a cell with a defect in it, as a user would, and says what came of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result
from tests.defects.defect import Defect
from tests.defects.settings import Setting
from tests.tools.cells import manifest_of, run
from tests.tools.forked import Plant, started

TRUE_REASONS = {"noisy", "drift", "oversubscribed"}
"""Flags that a busy machine of few cores earns, defect or not."""
VERIFIED_STEPS = 6
"""More than the default: some defects begin late."""


@dataclass(frozen=True)
class Complaint:
    """One thing that was found wrong: by which check, or as `failure`; in which words."""

    by: str
    words: str
    verdict: str = "invalid"


@dataclass(frozen=True)
class Outcome:
    """What was said of a run."""

    complaints: Sequence[Complaint]
    passed: bool
    """Whether the measurement would be taken for good: done, valid, without a flag of its own."""

    def has(self, expected: Complaint) -> bool:
        return any(
            (said.by, said.verdict) == (expected.by, expected.verdict)
            and expected.words in said.words
            for said in self.complaints
        )


def normal_run(folder: Path, setting: Setting, plant: Plant | None = None) -> Outcome:
    """`gnnhpc run` of one cell on its real ranks; what its result says."""
    (cell,) = manifest_of(folder, setting.experiment())
    ran = run(folder, cell, env=dict(setting.env), plant=plant)
    try:
        return judged(ran.result)
    except (OSError, InputError) as error:
        text = f"ranks ended with {ran.statuses}, no result ({error}): {' '.join(ran.err)[-2000:]}"
        return Outcome([Complaint("failure", text)], passed=False)


def judged(result: Result) -> Outcome:
    """What a result says of its run."""
    said = [
        Complaint(check.name, check.detail, check.verdict)
        for check in result.audit
        if check.verdict in ("invalid", "suspect") and check.name not in TRUE_REASONS
    ]
    if result.failure is not None:
        said.append(Complaint("failure", result.failure.error))
    return Outcome(said, passed=result.status == "done" and not said)


def verification(folder: Path, setting: Setting, plant: Plant | None = None) -> Outcome:
    """`gnnhpc verify` of one cell on its real ranks; what it prints."""
    (cell,) = manifest_of(folder, setting.experiment())
    line = RunPaths(folder).manifest.read_text(encoding="utf-8")
    (folder / "cell.json").write_text(line, encoding="utf-8")
    arguments = ["verify", "--cell", folder / "cell.json", "--steps", VERIFIED_STEPS]
    env = dict(setting.env) | {"COLUMNS": "2000", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    size = cell.experiment.rank_map.processes
    with started(arguments, size, folder / "printed", env=env, plant=plant) as running:
        statuses = running.wait()
        text = "\n".join(running.out(rank) + running.err(rank) for rank in range(size))
    passed = statuses == [0] * size and "PASSED" in text
    return Outcome([Complaint("verify", text)], passed)


def plant_of(defect: Defect) -> Plant:
    """The plant as a rank's process can be given it: by name."""
    return functools.partial(_plant, defect.name)


def _plant(name: str) -> None:
    from tests.defects.catalog import DEFECTS

    DEFECTS[name].plant()
