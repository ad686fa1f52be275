"""A single experiment's data: a name alone, a default by the model's kind, a file of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.data.data_settings import SyntheticCifar10, SyntheticCitation
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.flags import cell_from_flags
from tests.tools.data_files import write_planetoid


def experiment(model: str, *settings: str, data: str | None = None, root: Any = None) -> Experiment:
    return cell_from_flags(model, data, "seq", 1, settings, root).experiment


def test_data_are_of_the_kind_that_the_model_takes() -> None:
    assert experiment("vig").data == SyntheticCifar10()
    assert experiment("vig").batch_size == 100
    assert experiment("gat").data == SyntheticCitation()
    assert experiment("gat").batch_size is None
    assert experiment("gat", "data.nodes=500").data == SyntheticCitation(nodes=500)


@pytest.mark.parametrize("setting", ["data=pubmed", "data={name: pubmed}", "data.name=pubmed"])
def test_a_name_alone_stands_for_its_defaults(tmp_path: Path, setting: str) -> None:
    write_planetoid(tmp_path, "PubMed")
    assert experiment("gat", setting, root=str(tmp_path)).data == PublishedGraph(name="pubmed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["data.nodse=3"],
            r"flags: data.nodse: found an unknown key \(is nodes meant\?\); allowed: classes",
        ),
        (["data={name: file, path: no.npz}"], "no.npz: found (?i:no such file)"),
    ],
)
def test_a_mistake_is_one_line(settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        experiment("gat", *settings)
