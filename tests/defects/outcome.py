"""Runs a cell with a defect in it, as a user would, and says what came of it."""

from __future__ import annotations

import functools
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import RunPaths
from tests.defects.defect import Defect
from tests.defects.reading import Complaint, Outcome, judged, judged_folder
from tests.defects.settings import Setting
from tests.tools.cells import manifest_of, run
from tests.tools.forked import Plant, started

VERIFIED_STEPS = 6
"""More than the default: some defects begin late."""


def normal_run(folder: Path, setting: Setting, plant: Plant | None = None) -> Outcome:
    """`gnnhpc run` of one cell on its real ranks; what its result or its report says."""
    (cell,) = manifest_of(folder, setting.experiment())
    ran = run(folder, cell, env=dict(setting.env), plant=plant)
    try:
        said = judged(ran.result)
        return judged_folder(folder) if said.passed else said
    except (OSError, InputError) as error:
        text = f"ranks ended with {ran.statuses}, no result ({error}): {' '.join(ran.err)[-2000:]}"
        return Outcome([Complaint("failure", text)], passed=False)


def verification(folder: Path, setting: Setting, plant: Plant | None = None) -> Outcome:
    """`gnnhpc verify` of one cell on its real ranks; what it prints."""
    (cell,) = manifest_of(folder, setting.experiment())
    line = RunPaths(folder).manifest.read_text(encoding="utf-8")
    (folder / "cell.json").write_text(line, encoding="utf-8")
    arguments = ["verify", "--cell", folder / "cell.json", "--steps", VERIFIED_STEPS]
    env = dict(setting.env) | {"COLUMNS": "2000", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    size = cell.experiment.process_layout.world_size
    with started(arguments, size, folder / "printed", env=env, plant=plant) as running:
        # A twin of many nodes takes a while on a busy machine.
        statuses = running.wait(240.0)
        text = "\n".join(running.out(rank) + running.err(rank) for rank in range(size))
    passed = statuses == [0] * size and "PASSED" in text
    return Outcome([Complaint("verify", text)], passed)


def plant_of(defect: Defect) -> Plant:
    """The plant as a rank's process can be given it: by name."""
    return functools.partial(_plant, defect.name)


def _plant(name: str) -> None:
    from tests.defects.catalog import DEFECTS

    DEFECTS[name].plant()
