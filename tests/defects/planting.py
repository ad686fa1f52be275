"""Plants one defect after another and keeps what came of each."""

from __future__ import annotations

import itertools
import shutil
from functools import cached_property
from pathlib import Path

from tests.defects.catalog import DEFECTS
from tests.defects.folders import FOLDER_DEFECTS, real_folder
from tests.defects.matrix import Row, kinds
from tests.defects.outcome import normal_run, plant_of, verification
from tests.defects.reading import judged_folder
from tests.defects.resumed import RESUME_DEFECTS, resumed_run


class Planting:
    """Works in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, Row] = {}
        self._numbers = itertools.count()

    def row(self, name: str) -> Row:
        """Plant a defect by name."""
        here = self.folder / f"defect-{next(self._numbers)}"
        kind, verified = kinds()[name], None
        if name in DEFECTS:
            defect = DEFECTS[name]
            said = normal_run(here / "run", defect.setting, plant_of(defect))
            verified = verification(here / "verify", defect.setting, plant_of(defect))
        elif name in RESUME_DEFECTS:
            said = resumed_run(here, RESUME_DEFECTS[name])
        else:
            shutil.copytree(self.real, here)
            FOLDER_DEFECTS[name].change(here)
            said = judged_folder(here)
        self.rows[name] = Row(name, kind, said, verified)
        return self.rows[name]

    @cached_property
    def real(self) -> Path:
        """A run folder of real runs."""
        return real_folder(self.folder / "real")
