"""The users' own models of a run: kept in its folder when it is planned, found there to run it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from gnnhpc.models.own import OwnModel
from gnnhpc.records.paths import RunPaths
from gnnhpc.spec.experiment import Experiment


def keep_models(paths: RunPaths, experiments: Iterable[Experiment]) -> None:
    """Copy the sources of each own model into the run folder, once each."""
    for model in _own(experiments):
        assert model.digest is not None
        folder = paths.own_model(model.digest)
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        if model.source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(model.source, folder / model.source.name, ignore=ignored)
        else:
            shutil.copyfile(model.source, folder / model.source.name)


def load_model(experiment: Experiment, paths: RunPaths, *others: Path) -> None:
    """Make the experiment's model usable: from the run folder, `others`, or Python's own path.

    Raises InputError for a user's own that is nowhere, or not as it was planned.
    """
    model = experiment.model
    kept = [paths.own_model(model.digest)] if isinstance(model, OwnModel) and model.digest else []
    model.load([*(folder for folder in kept if folder.is_dir()), *others])


def _own(experiments: Iterable[Experiment]) -> list[OwnModel]:
    found = {id(e.model): e.model for e in experiments if isinstance(e.model, OwnModel)}
    return list({model.digest: model for model in found.values()}.values())
