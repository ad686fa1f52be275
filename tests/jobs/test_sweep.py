"""From a spec to its experiments: what is multiplied, in which order, and what --set changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.experiment.experiment import Experiment
from jobs.sweep.plan import SHIPPED, find_spec, plan

VIG = {"name": "vig", "blocks": 2}
IMAGES = {"name": "synthetic-cifar10", "train": 200, "test": 200}
GRAPH = {"name": "synthetic-citation", "nodes": 100, "edges": 400}
SAMPLING = {"fanouts": [4, 3]}


def vig(**keys: Any) -> dict[str, Any]:
    return {"models": [VIG], "data": [IMAGES], "batch_size": 20} | keys


def gat(**keys: Any) -> dict[str, Any]:
    return {"models": "gat", "data": GRAPH} | keys


def sage(**keys: Any) -> dict[str, Any]:
    return {"models": "sage", "data": GRAPH} | keys


def expand(
    *grids: dict[str, Any], overrides: tuple[str, ...] = (), **defaults: Any
) -> list[Experiment]:
    return plan(
        {"name": "sweep", "defaults": defaults, "grids": list(grids)}, overrides
    ).experiments


def test_every_list_is_multiplied_and_repeats_are_interleaved_across_layouts() -> None:
    grid = vig(layouts=["pp2", "pp4"], microbatches=[5, 10], seeds=[0, 1, 2], repeats=2)
    made = expand(grid)
    assert len(made) == 2 * 2 * 3 * 2 == len({one.id for one in made})
    made = expand(vig(layouts=["seq", "pp2"], microbatches=[5, 10], repeats=2))
    order = [(one.repeat, str(one.layout), one.microbatches) for one in made]
    once = [("seq", 1), ("pp2", 5), ("seq", 5), ("pp2", 10), ("seq", 10)]
    assert order == [(repeat, *place) for repeat in (0, 1) for place in once]


def test_a_grid_beats_the_defaults_and_an_optimizer_is_merged() -> None:
    (one,) = expand(
        vig(train_steps=7, optimizer={"lr": 0.5}),
        train_steps=3,
        optimizer={"lr": 0.1, "weight_decay": 0.2},
    )
    assert (one.train_steps, one.optimizer.lr, one.optimizer.weight_decay) == (7, 0.5, 0.2)


def test_sampling_and_batch_sizes_are_axes_and_sampling_is_merged() -> None:
    made = expand(
        sage(sampling=[{"workers": 0}, {"sampler": "dgl"}], batch_size=[7, 14], layouts="dp2"),
        sampling=SAMPLING | {"inductive": True},
        overrides=("sampling.workers=2",),
    )
    sampled = [(e.sampling, e.batch_size) for e in made if e.sampling is not None]
    kinds = Counter((one.sampler, size) for one, size in sampled)
    assert kinds == Counter((name, n) for name in ("ours", "dgl") for n in (7, 14))
    assert {(one.fanouts, one.inductive, one.workers) for one, _ in sampled} == {((4, 3), True, 2)}


def test_defaults_are_left_out_of_cells_that_have_no_use_for_them() -> None:
    made = expand(
        *(sage(sampling=[None, {}]), vig(layouts=["seq", "dp2"]), gat(layouts=["seq", "pp4"])),
        batch_size=8,
        chunks="clustered",
        sampling=SAMPLING,
        batchnorm="deferred",
        rebuild="once",
        bucket_mib=0.5,
        balance=[1, 2, 1, 2],
        virtual_stages=2,
    )
    whole, sampled, images, replicas, graph, stages = made[:6]
    assert (whole.sampling, whole.batch_size, whole.chunks) == (None, None, "clustered")
    assert sampled.sampling is not None
    assert (sampled.batch_size, sampled.chunks) == (8, "contiguous")
    assert (images.sampling, images.batchnorm, graph.batchnorm) == (None, "deferred", "micro")
    assert (images.bucket_mib, replicas.bucket_mib) == (None, 0.5)
    assert (graph.balance, stages.balance, stages.virtual_stages) == ("cost", (1, 2, 1, 2), 1)


@pytest.mark.parametrize(
    ("key", "grid"),
    [
        ("batch_size", sage(batch_size=8)),
        ("chunks", sage(batch_size=8, sampling=SAMPLING, chunks="halo")),
        ("sampling", vig(sampling=SAMPLING)),
        ("bucket_mib", vig(layouts=["seq", "pp2"], microbatches=5, bucket_mib=0.5)),
        ("virtual_stages", vig(layouts="pp2", microbatches=5, virtual_stages=2)),
        ("rebuild", vig(rebuild="layer")),
        ("batchnorm", gat(batchnorm="deferred")),
    ],
)
def test_a_key_that_no_cell_of_its_grid_uses_is_refused(key: str, grid: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"grids\.0\.{key}: found .*; allowed: nothing here"):
        expand(grid)


def test_a_graph_that_is_cut_keeps_its_edges_unless_the_spec_says_more() -> None:
    made = expand(gat(layouts=["seq", "dp2", "pp2"], microbatches=[1, 3]), sage())
    cut = {("seq", 3), ("dp2", 1), ("dp2", 3), ("pp2", 3)}
    assert {(str(e.layout), e.microbatches) for e in made if e.chunks == "halo"} == cut
    assert expand(gat(layouts="dp2", rebuild="layer"))[0].chunks == "contiguous"
    assert expand(gat(layouts="dp2", chunks="clustered"))[0].chunks == "clustered"


def test_virtual_stages_are_for_interleaved_pipelines_alone() -> None:
    schedules = ["gpipe", "1f1b", "interleaved"]
    grid = vig(models=[VIG | {"blocks": 3}], layouts=["seq", "pp2", "dp2"], microbatches=4)
    made = expand(grid | {"schedules": schedules, "virtual_stages": [2, 3]})
    assert Counter((str(e.layout), e.schedule, e.virtual_stages) for e in made) == Counter({
        ("seq", "gpipe", 1): 2, ("dp2", "gpipe", 1): 1, ("pp2", "gpipe", 1): 1,
        ("pp2", "1f1b", 1): 1, ("pp2", "interleaved", 2): 1, ("pp2", "interleaved", 3): 1,
    })  # fmt: skip


def test_overrides_reach_what_has_the_setting() -> None:
    first, second = expand(
        vig(), gat(), overrides=("data.train=100", "models.blocks=1", "grids.1.seeds=3")
    )
    assert (first.data.facts().train, first.model.model_dump()["blocks"]) == (100, 1)
    assert (first.seed, second.seed) == (0, 3)


@pytest.mark.parametrize("path", sorted(Path("jobs/sweeps").rglob("*.yaml")), ids=str)
def test_every_shipped_sweep_has_three_runs_of_each_configuration(path: Path) -> None:
    """Fewer say too little of how runs differ; seeds are runs too."""
    runs = Counter(
        one.model_copy(update={"seed": 0, "repeat": 0}).id
        for one in plan(path, check=False).experiments
    )
    assert min(runs.values()) >= 3


def test_a_bare_name_is_a_shipped_sweep_unless_there_is_such_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_spec(Path("quickstart")) == SHIPPED / "quickstart.yaml"
    with pytest.raises(InputError, match=r"^quikstart: found no such file.*dearing-gat, deep-gcn"):
        find_spec(Path("quikstart"))
    Path("quickstart").write_text("name: own")
    assert find_spec(Path("quickstart")) == Path("quickstart")


def test_a_custom_graph_is_read_once_for_all_grids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = np.arange(6)
    masks = {f"{name}_mask": nodes % 3 == n for n, name in enumerate(("train", "val", "test"))}
    edges = np.stack([nodes, np.roll(nodes, 1)])
    np.savez(tmp_path / "g.npz", edge_index=edges, x=np.ones((6, 2)), y=nodes % 2, **masks)
    read: list[Path] = []
    planned = CustomGraph.planned

    def counted(self: CustomGraph, folder: Path) -> CustomGraph:
        read.append(folder)
        return planned(self, folder)

    monkeypatch.setattr(CustomGraph, "planned", counted)
    monkeypatch.chdir(tmp_path)
    grid = gat(data={"name": "file", "path": "g.npz", "directed": True})
    assert len(expand(*(grid | {"layouts": layout} for layout in ("seq", "pp2", "dp2")))) == 3
    assert len(read) == 1
    with pytest.raises(InputError, match=r"grids\.1\.data: "):
        expand(grid, grid | {"data": {"name": "file", "path": "nowhere.npz"}})
