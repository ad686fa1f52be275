"""A cell whose sampler is not installed is not begun on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs.actions.submit import check_cluster

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import assign_indices
from gnnhpc.models import libraries
from tests.tools.cells import sampled


@pytest.mark.parametrize("sampler", ["pyg", "dgl"])
def test_its_library_is_looked_for_before_anything_is_written(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda _: None)
    (ours, theirs) = assign_indices(
        [sampled(), sampled(sampling={"fanouts": [4, 3], "sampler": sampler})]
    )
    check_cluster("local", tmp_path, [ours])
    with pytest.raises(InputError, match=f"^sampling: sampler: found {sampler}, .*make setup-"):
        check_cluster("local", tmp_path, [ours, theirs])
