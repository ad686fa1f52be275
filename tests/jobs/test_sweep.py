"""From a spec to its experiments: what is multiplied, in which order, and what --set changes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.experiment.manifest import Cell
from jobs.sweep.plan import plan

VIG = {"name": "vig", "blocks": 2}
IMAGES = {"name": "synthetic-cifar10", "train": 200, "test": 200}
GRAPH = {"name": "synthetic-citation", "nodes": 100, "edges": 400}


def spec(*grids: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return {"name": "sweep", "defaults": defaults, "grids": list(grids)}


def vig(**keys: Any) -> dict[str, Any]:
    return {"models": [VIG], "data": [IMAGES], "batch_size": 20} | keys


def gat(**keys: Any) -> dict[str, Any]:
    return {"models": "gat", "data": GRAPH} | keys


def cells(raw: dict[str, Any], *overrides: str) -> tuple[Cell, ...]:
    return plan(raw, overrides).cells


def test_every_list_is_multiplied() -> None:
    grid = vig(layouts=["pp2", "pp4"], microbatches=[5, 10], seeds=[0, 1, 2], repeats=2)
    made = cells(spec(grid))
    assert len(made) == 2 * 2 * 3 * 2 == len({cell.id for cell in made})


def test_compiled_layers_are_another_cell() -> None:
    """And those that are not compiled have the id that they had without the setting."""
    grid = gat(models={"name": "gat", "implementation": "pyg"})
    (alone,) = cells(spec(grid))
    off, compiled = cells(spec(grid | {"compile": ["off", "default"]}))
    assert off.id == alone.id != compiled.id


def test_the_sequential_run_also_gets_one_microbatch() -> None:
    made = cells(spec(vig(layouts=["seq", "pp2"], microbatches=[5, 10])))
    counts = [(str(c.experiment.layout), c.experiment.microbatches) for c in made]
    assert Counter(counts) == Counter(
        [("seq", 1), ("seq", 5), ("seq", 10), ("pp2", 5), ("pp2", 10)]
    )


def test_repeats_are_interleaved_across_layouts() -> None:
    made = cells(spec(vig(layouts=["pp2", "pp4"], microbatches=5, repeats=2)))
    order = [(c.experiment.repeat, str(c.experiment.layout), c.index) for c in made]
    assert order == [(0, "pp2", 0), (0, "pp4", 0), (1, "pp2", 1), (1, "pp4", 1)]


def test_a_grid_beats_the_defaults_and_an_optimizer_is_merged() -> None:
    raw = spec(
        vig(train_steps=7, optimizer={"lr": 0.5}),
        train_steps=3,
        optimizer={"lr": 0.1, "weight_decay": 0.2},
    )
    experiment = cells(raw)[0].experiment
    assert experiment.train_steps == 7
    assert (experiment.optimizer.lr, experiment.optimizer.weight_decay) == (0.5, 0.2)


def test_defaults_that_mean_nothing_for_the_data_are_left_out() -> None:
    raw = spec(
        {"models": [VIG], "data": [IMAGES]},
        gat(),
        batch_size=20,
        chunks="halo",
        batchnorm="deferred",
    )
    by_model = {cell.experiment.model.name: cell.experiment for cell in cells(raw)}
    assert by_model["gat"].batch_size is None
    assert by_model["gat"].batchnorm == "micro"
    assert by_model["vig"].batch_size == 20
    assert by_model["vig"].chunks == "contiguous"


def sage(**keys: Any) -> dict[str, Any]:
    return {"models": "sage", "data": GRAPH} | keys


def test_sampling_and_batch_sizes_are_axes_and_sampling_is_merged() -> None:
    entries = [{"workers": 0}, {"sampler": "dgl"}]
    raw = spec(
        sage(sampling=entries, batch_size=[7, 14], layouts=["seq", "dp2"]),
        sampling={"fanouts": [4, 3], "inductive": True},
    )
    made = [cell.experiment for cell in cells(raw)]
    drawn = Counter(
        (e.sampling.sampler, e.sampling.workers, e.batch_size, str(e.layout))
        for e in made
        if e.sampling is not None
    )
    kinds = [("ours", 0), ("dgl", 1)]
    assert drawn == Counter((*k, b, n) for k in kinds for b in (7, 14) for n in ("seq", "dp2"))
    assert {(e.sampling.fanouts, e.sampling.inductive) for e in made if e.sampling} == {
        ((4, 3), True)
    }
    overridden = cells(raw, "sampling.workers=2")
    assert {c.experiment.sampling.workers for c in overridden if c.experiment.sampling} == {2}


def test_a_batch_size_is_for_sampled_graphs_and_chunks_are_for_others() -> None:
    """As a default each is left out where it means nothing; of `null`, the whole graph too."""
    sampling = {"fanouts": [4, 3]}
    common: dict[str, Any] = {"batch_size": 8, "chunks": "halo", "sampling": sampling}
    grids = [sage(sampling=[None, {}]), vig()]
    whole, drawn, images = (cell.experiment for cell in cells(spec(*grids, **common))[:3])
    assert (whole.sampling, whole.batch_size, whole.chunks) == (None, None, "halo")
    assert drawn.sampling is not None
    assert (drawn.batch_size, drawn.chunks) == (8, "contiguous")
    assert images.sampling is None
    with pytest.raises(InputError, match=r"nothing here, batch_size is for images, many graphs a"):
        cells(spec(sage(batch_size=8)))
    with pytest.raises(InputError, match=r"chunks: found 'halo'; allowed: nothing here, chunks is"):
        cells(spec(sage(batch_size=8, sampling=sampling, chunks="halo")))
    with pytest.raises(InputError, match=r"sampling: .*nothing here, sampling is for graph data"):
        cells(spec(vig(sampling=sampling)))
    with pytest.raises(InputError, match=r"sampling\.fanouts: found \[\]; allowed: at least 1"):
        cells(spec(sage(batch_size=8, sampling={"fanouts": []})))
    with pytest.raises(InputError, match=r"0\.sampling\.workers: found -1; allowed: at least"):
        cells(spec(sage(batch_size=8, sampling=sampling | {"workers": -1})))


def test_a_graph_that_is_cut_keeps_its_edges_unless_the_spec_says_more() -> None:
    made = cells(spec(gat(layouts=["seq", "dp2", "pp2"], microbatches=[1, 3]), sage()))
    found = [cell.experiment for cell in made]
    cut = {("seq", 3), ("dp2", 1), ("dp2", 3), ("pp2", 3)}
    assert {(str(e.layout), e.microbatches) for e in found if e.chunks == "halo"} == cut
    (one,) = cells(spec(gat(layouts="dp2", rebuild="layer")))
    assert one.experiment.chunks == "contiguous"
    (one,) = cells(spec(gat(layouts="dp2", chunks="clustered")))
    assert one.experiment.chunks == "clustered"


def test_a_test_step_is_measured_unless_the_spec_says_less() -> None:
    (one,) = cells(spec(gat(warmup_steps=5, train_steps=9)))
    assert one.experiment.test_steps == 6
    assert plan(spec(gat(warmup_steps=5, train_steps=9))).notes() == []
    assert plan(spec(gat(warmup_steps=3, train_steps=9, test_steps=3))).notes() == [
        "1 of 1 cells measure no test step: warmup_steps 3 of test_steps 3, so their test rows "
        "have no times"
    ]
    often = gat(warmup_steps=3, train_steps=9, test_steps=2, test_every=3)
    assert plan(spec(often)).notes() == []


def test_a_balance_is_for_the_pipelined_layouts_alone() -> None:
    made = cells(spec(gat(layouts=["seq", "pp4"], balance=[1, 2, 1, 2])))
    balances = {str(c.experiment.layout): c.experiment.balance for c in made}
    assert balances == {"seq": "cost", "pp4": (1, 2, 1, 2)}


def test_buckets_are_for_replicas_alone() -> None:
    """The runs without replicas are one cell each, whether or not a grid has buckets."""
    layouts = {"layouts": ["seq", "pp2", "dp2", "dp2-pp2"], "microbatches": 5}
    made = cells(spec(vig(**layouts), vig(**layouts, bucket_mib=0.5)))
    found = Counter((str(c.experiment.layout), c.experiment.bucket_mib) for c in made)
    assert found == Counter(
        {
            ("seq", None): 2,
            ("pp2", None): 1,
            **{(layout, mib): 1 for layout in ("dp2", "dp2-pp2") for mib in (None, 0.5)},
        }
    )
    as_default = cells(spec(vig(layouts="seq"), bucket_mib=0.5))
    assert [cell.experiment.bucket_mib for cell in as_default] == [None]
    line = "grids.0.bucket_mib: found 0.5; allowed: nothing here, bucket_mib is for layouts with r"
    with pytest.raises(InputError, match=re.escape(line)):
        cells(spec(vig(layouts=["seq", "pp2"], microbatches=5, bucket_mib=0.5)))


def test_parts_are_for_interleaved_pipelines_alone() -> None:
    grid = vig(
        models=[VIG | {"blocks": 3}],
        layouts=["seq", "pp2", "dp2"],
        microbatches=4,
        schedules=["gpipe", "1f1b", "interleaved"],
        virtual_stages=[2, 3],
    )
    made = [cell.experiment for cell in cells(spec(grid))]
    assert Counter((str(e.layout), e.schedule, e.virtual_stages) for e in made) == Counter(
        {
            ("seq", "gpipe", 1): 2,
            ("dp2", "gpipe", 1): 1,
            ("pp2", "gpipe", 1): 1,
            ("pp2", "1f1b", 1): 1,
            ("pp2", "interleaved", 2): 1,
            ("pp2", "interleaved", 3): 1,
        }
    )
    assert len({e.id for e in made}) == len(made)
    # As a default they are left out of grids without.
    pipelines = vig(layouts="pp2", microbatches=4)
    raw = spec(pipelines, pipelines | {"schedule": "interleaved"}, virtual_stages=2)
    assert [cell.experiment.virtual_stages for cell in cells(raw)] == [1, 2]


def test_a_dotted_override_reaches_what_has_the_field() -> None:
    raw = spec(vig(), gat())
    made = {
        c.experiment.model.name: c.experiment
        for c in cells(raw, "data.train=100", "model.blocks=1")
    }
    assert made["vig"].data.facts().train == 100
    assert made["vig"].model.model_dump()["blocks"] == 1


@pytest.mark.parametrize("path", sorted(Path("jobs/sweeps").rglob("*.yaml")), ids=str)
def test_every_sweep_that_comes_along_has_three_runs_of_each_configuration(path: Path) -> None:
    """Fewer say too little of how runs differ; seeds are runs too."""
    runs = Counter(
        one.experiment.model_copy(update={"seed": 0, "repeat": 0}).id
        for one in plan(path, check=False).cells
    )
    assert min(runs.values()) >= 3


def test_rebuilding_is_for_graphs_alone() -> None:
    made = [cell.experiment for cell in cells(spec(vig(), gat(), rebuild="layer"))]
    assert {(e.model.name, e.rebuild) for e in made} == {("vig", "once"), ("gat", "layer")}
    with pytest.raises(InputError, match=r"allowed: nothing here, rebuild is for graph data"):
        cells(spec(vig(rebuild="layer")))
    with pytest.raises(InputError, match=r"rebuild: found 'layer'; allowed: 'once' but for chunks"):
        cells(spec(gat(rebuild="layer", chunks="halo")))


def test_a_graph_of_ones_own_is_read_once_for_all_grids(
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
    grid = {"models": "gat", "data": {"name": "file", "path": "g.npz", "directed": True}}
    grids = [grid | {"layouts": layout} for layout in ("seq", "pp2", "dp2")]
    wrong = grid | {"data": {"name": "file", "path": "nowhere.npz"}}
    monkeypatch.chdir(tmp_path)
    assert len(plan({"name": "run", "grids": grids}).cells) == 3
    assert len(read) == 1
    for number in (0, 1):
        entries = [grid, grid]
        entries[number] = wrong
        with pytest.raises(InputError, match=rf"grids\.{number}\.data: "):
            plan({"name": "run", "grids": entries})
