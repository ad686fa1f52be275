"""The files of users' own models: copied into the run folder, and loaded from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import temporary_beside
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.import_custom_model import source_digest, source_files


def copy_models(paths: RunPaths, experiments: Iterable[Experiment]) -> None:
    """Copy the sources of each custom model into the run folder, once each, whole or not at all.

    Raises InputError for sources that have changed since the plan, or a file that cannot be copied.
    """
    models = [e.model for e in experiments if isinstance(e.model, CustomModel)]
    for digest, model in {each.digest: each for each in models}.items():
        assert digest is not None
        folder = paths.custom_model(digest)
        if folder.exists():
            continue
        temporary = temporary_beside(folder)
        try:
            # Listed first, as the run folder may lie in the package.
            for file in source_files(model.source):
                copy = temporary / file.relative_to(model.source.parent)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
            if source_digest(temporary / model.source.name) != digest:
                found = f"{model.source} changed while it was being planned"
                raise InputError(f"model {model.name}", None, found, "sources at rest")
            temporary.rename(folder)
        except OSError as error:
            # Another submission may have copied the same sources meanwhile.
            if not folder.exists():
                found = f"{model.source} cannot be copied to {folder} ({error.strerror or error})"
                raise InputError(f"model {model.name}", None, found) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def load_model(experiment: Experiment, paths: RunPaths, *others: Path) -> None:
    """Load the experiment's model: from the run folder, from `others`, or from Python's path.

    Raises InputError for a custom model that is not found, or has changed since the plan.
    """
    model, places = experiment.model, [*others]
    if isinstance(model, CustomModel) and model.digest:
        kept = paths.custom_model(model.digest)
        places = [kept, *others] if kept.is_dir() else places
    model.load(places)
