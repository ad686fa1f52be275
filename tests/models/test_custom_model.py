"""A custom model is found, checked when it is planned, kept with the run, and run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gnnhpc import models
from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.copy_custom_models import copy_models, load_model
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.import_custom_model import source_digest
from gnnhpc.models.model import BuildOptions, Context
from jobs.sweep.plan import plan
from tests.tools.graphs import make_graph, relative_error

README = Path(models.__file__).parent / "README.md"
GRAPH = {"name": "synthetic-citation", "nodes": 60, "edges": 240, "features": 16, "classes": 3}
HEAD = "from gnnhpc import Layer, Model\n"
NET = """
class Net(Model):
    takes = ("graph",)
    width: int = 4

    def outline(self, facts):
        return [Layer("a", (facts.features,), (self.width,)), Layer("b", (self.width,), (3,))]

    def build(self, layer, options):
        raise NotImplementedError
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's; what is imported from it is forgotten."""
    modules, path = set(sys.modules), list(sys.path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    sys.path[:] = path


def planned(folder: Path, model: Any, *, text: str = HEAD + NET, **keys: Any) -> tuple[Cell, ...]:
    """The cells of a spec beside a file net.py with this text, and another file."""
    (folder / "helper_x.py").write_text("")
    (folder / "net.py").write_text(text)
    grid = {"models": [model], "data": [GRAPH], **keys}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "grids": [grid]}))
    return plan(folder / "mine.yaml").cells


# What stands in net.py and how the model is named there -> how the one line goes on.
MISTAKES: list[tuple[str, Any, str]] = [
    (NET, "other:Net", "grids.0.models: model other:Net: found no module other in "),
    (NET, "net:Nett", "grids.0.models: model net:Nett: found no Nett in "),
    (NET, ":Net", "grids.0.models.0.name: found ':Net'; allowed: gat, gatv2, gcn, "),
    ("import helper_x" + NET, "net:Net", "net.py that imports helper_x.py beside it; allowed: on"),
    ("Net = 3", "net:Net", "grids.0.models: model net:Net: found Net, which is no gnnhpc.Model; "),
    ("class Net(Model): pass", "net:Net", "grids.0.models: model net:Net: found Net without outli"),
    ("def (", "net:Net", "grids.0.models: model net:Net: found "),
    (NET, {"name": "net:Net", "widht": 3}, "grids.0.models: model net:Net: widht: found an unknow"),
    (NET, {"name": "net:Net", "width": "x"}, "grids.0.models: model net:Net: width: found 'x'; al"),
    (NET.replace('"graph"', '"images"'), "net:Net", "grids.0.data: found 'synthetic-citation'; al"),
    (NET.replace("return [", "return 3 #"), "net:Net", "model net:Net: outline: found TypeError"),
    (NET.replace('"b"', '"a"'), "net:Net", "outline.1.name: found 'a' twice; allowed: another na"),
    (NET.replace("(self.width,), (3,)", "(9,), (3,)"), "net:Net", "outline.1.inputs: found (9,) i"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "model", "line"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line(folder: Path, text: str, model: Any, line: str) -> None:
    with pytest.raises(InputError) as refused:
        planned(folder, model, text=HEAD + text)
    said = str(refused.value)
    assert said.startswith((f"{folder / 'mine.yaml'}: ", "model net:Net: "))
    assert line in said
    assert "\n" not in said


def test_a_file_that_is_a_module_already_is_refused(folder: Path) -> None:
    (folder / "json.py").write_text(HEAD + NET)
    with pytest.raises(InputError, match=r"json\.py, but json is .* already; allowed: another"):
        CustomModel(name="json:Net").planned(folder)


def test_settings_and_digest_are_content_and_defaults_are_not(folder: Path) -> None:
    (plain,) = planned(folder, "net:Net")
    (same,) = planned(folder, {"name": "net:Net", "width": 4})
    (wide,) = planned(folder, {"name": "net:Net", "width": 5})
    assert plain.id == same.id != wide.id
    assert plain.array == "net.Net-seq"
    digest = source_digest(folder / "net.py")
    assert plain.experiment.content()["model"] == {"name": "net:Net", "digest": digest}
    assert wide.experiment.content()["model"] == {"name": "net:Net", "digest": digest, "width": 5}


def test_a_changed_file_is_not_run_in_place_of_the_planned_one(folder: Path) -> None:
    (cell,) = planned(folder, "net:Net")
    again = Cell.read(json.loads(cell.to_line()), "manifest").experiment
    run = RunPaths(folder / "run")
    (folder / "net.py").write_text(HEAD + NET.replace("width: int = 4", "width: int = 6"))
    with pytest.raises(InputError, match=r"model net:Net: digest: found .* in .*net\.py; all"):
        load_model(again, run, folder)
    (folder / "net.py").write_text(HEAD + NET)
    copy_models(run, [cell.experiment])
    (folder / "net.py").unlink()
    again = Cell.read(json.loads(cell.to_line()), "manifest").experiment
    load_model(again, run)
    assert isinstance(again.model, CustomModel)
    assert again.model.source.is_relative_to(run.code)


def test_a_package_is_copied_with_the_run_and_read_again_where_it_is_edited(folder: Path) -> None:
    """Without what is no code of it, such as a run that lies within."""
    package, digests, widths = folder / "deep", [], []
    package.mkdir()
    (package / "__init__.py").write_text("")
    text = NET.replace("int = 4", "int = WIDTH")
    (package / "model.py").write_text(HEAD + "from deep.width import WIDTH\n" + text)
    for width in (4, 4, 50):
        (package / "width.py").write_text(f"WIDTH = {width}\n")
        (package / "__pycache__").mkdir(exist_ok=True)
        (package / "__pycache__" / "file").write_text(f"{len(widths)}")
        model = CustomModel(name="deep.model:Net").planned(folder)
        experiment = Experiment.model_validate({"model": model, "data": GRAPH})
        widths.append(model.outline(experiment.data.facts())[0].shape)
        digests.append(model.digest)
        run = RunPaths(package / "runs" / f"mine-{len(widths)}")
        run.root.mkdir(parents=True)
        run.manifest.write_text("")
        copy_models(run, [experiment])
        kept = run.custom_model(str(model.digest)) / "deep"
        files = {p.relative_to(kept).as_posix() for p in kept.rglob("*") if p.is_file()}
        assert files == {"__init__.py", "model.py", "width.py"}
    assert widths == [(4,), (4,), (50,)]
    assert digests[0] == digests[1] != digests[2]


def output(built: list[torch.nn.Module], graph: Graph, count: int) -> torch.Tensor:
    """Of all nodes [40, 3], computed in so many chunks."""
    out = torch.empty(40, 3, dtype=torch.float64)
    for number, chunk in enumerate(build_chunks(graph, count, "halo", 2).chunks):
        x: Any = feature_rows(graph.features, chunk.nodes, torch.float64).to_dense()
        for module in built:
            x = module(x, Context(number, step=3, graph=chunk))
            assert x.isfinite().all(), "in padding too, else the parameters' gradients are NaN"
        out[chunk.nodes[: chunk.own]] = x[: chunk.own]
    return out


def test_the_readmes_model_computes_the_whole_graph_in_halo_chunks(folder: Path) -> None:
    readme, graph = README.read_text(), make_graph(40, 60, seed=1)
    (folder / "mean_net.py").write_text(readme.split("```python\n")[1].split("```")[0])
    custom = CustomModel.model_validate({"name": "mean_net:MeanNet", "hidden": 8})
    loaded = custom.planned(folder).loaded
    layers = loaded.outline(Facts("graph", 12, 3, nodes=40, edges=graph.edges.shape[1]))
    torch.manual_seed(0)
    built = [loaded.build(layer, BuildOptions(torch.float64)) for layer in layers]
    assert relative_error(output(built, graph, 3), output(built, graph, 1)) < 1e-12


def test_the_readmes_chunk_is_that_of_a_path() -> None:
    edges = torch.tensor([[1, 0, 2, 1, 3, 2], [0, 1, 1, 2, 2, 3]])
    train = torch.tensor([True, False, True, True])
    masks = {"train": train, "val": ~train, "test": ~train}
    graph = Graph("path", torch.eye(4), torch.tensor([0, 1, 0, 1]), edges, masks, 2)
    _, chunk = build_chunks(graph, 2, "halo", 1).chunks
    lines = re.findall(r"^    (chunk\.\S+) +(.+?) *(?:#|$)", README.read_text(), re.MULTILINE)
    assert len(lines) == 8
    for expression, value in lines:
        found = eval(expression, {"chunk": chunk})
        assert str(found.tolist() if isinstance(found, torch.Tensor) else found) == value
