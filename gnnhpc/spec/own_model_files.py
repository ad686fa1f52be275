"""The files of users' own models: copied into the run folder, and loaded from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from gnnhpc.models.own_model import OwnModel
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.spec.experiment import Experiment


def copy_models(paths: RunPaths, experiments: Iterable[Experiment]) -> None:
    """Copy the sources of each own model into the run folder, once each."""
    for model in _own_models(experiments):
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
    """Load the experiment's model: from the run folder, from `others`, or from Python's path.

    Raises InputError for a user's own model that is not found, or has changed since the plan.
    """
    model = experiment.model
    kept = [paths.own_model(model.digest)] if isinstance(model, OwnModel) and model.digest else []
    model.load([*(folder for folder in kept if folder.is_dir()), *others])


def _own_models(experiments: Iterable[Experiment]) -> list[OwnModel]:
    found = {id(e.model): e.model for e in experiments if isinstance(e.model, OwnModel)}
    return list({model.digest: model for model in found.values()}.values())
