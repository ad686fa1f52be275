"""Dearing and Wang's study: conclusions follow from intervals, and rows that differ stay apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.figures import frameworks, graph_chunks
from analysis.figures.studies import Study, find_studies
from analysis.loading.run import Run, load
from analysis.papers.claims import Claim, Finding
from analysis.papers.gat_claims import published_numbers
from analysis.papers.gat_runs import GatRows
from analysis.papers.gat_tables_beside_ours import gat_tables
from analysis.papers.gat_verdicts import gat_verdict_rows
from analysis.papers.published_data import read_published
from analysis.report.report_pages import published_points
from analysis.report.report_tables import make_report_tables
from analysis.stats.intervals import Interval
from analysis.summary.frameworks import frameworks_frame
from analysis.summary.summary_table import summarise
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.tools.make_run import Machine, Story, make_run

CORA = {"name": "cora"}
PUBMED = {"name": "pubmed", "features": "made"}
SLOWER = {"fused": 1.0, "dgl": 3.0, "pyg": 5.0}


def sweep(data: dict[str, Any], seeds: int, implementations: tuple[str, ...]) -> list[Experiment]:
    def of(implementation: str, seed: int, **settings: Any) -> Experiment:
        model = {"name": "gat", "implementation": implementation}
        raw = {"model": model, "data": data, "seed": seed, "train_steps": 8, **settings}
        return Experiment.model_validate({"warmup_steps": 1, "test_steps": 1, **raw})

    def each() -> Iterator[Experiment]:
        for name in implementations:
            for seed in range(seeds):
                yield of(name, seed)
                for chunks in (1, 2, 4):
                    for rebuild in ("once", "layer"):
                        yield of(name, seed, layout="pp4", microbatches=chunks, rebuild=rebuild)
                yield of(name, seed, layout="pp4", microbatches=4, chunks="halo")

    return list(each())


def pace(experiment: Experiment) -> float:
    """Rebuilding takes longer the more chunks there are; halo chunks repeat some of the work."""
    times = SLOWER[experiment.model.model_dump()["implementation"]]
    if experiment.rebuild == "layer":
        times *= 1.0 + 2.0 * experiment.microbatches
    return times * (1.2 if experiment.chunks == "halo" else 1.0)


def accuracy(experiment: Experiment) -> float:
    """Lost with the edges between consecutive ranges."""
    lost = 0.0 if experiment.chunks == "halo" else 0.1 * (experiment.microbatches - 1)
    return 0.8 - lost + 0.004 * experiment.seed


MACHINE = Machine(noise=0.002, runs_differ=0.001, sequential=1.5, pace=pace, accuracy=accuracy)


def made(root: Path, *args: Any) -> Run:
    return load(make_run(root, sweep(*args), machine=MACHINE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("study") / "run", CORA, 3, ("pyg", "dgl", "fused"))


@pytest.fixture(scope="module")
def summary(run: Run) -> pd.DataFrame:
    return summarise(run)


@pytest.fixture(scope="module")
def rows(run: Run, summary: pd.DataFrame) -> GatRows:
    return GatRows(run, summary)


@pytest.fixture(scope="module")
def study(run: Run, summary: pd.DataFrame) -> Study:
    (found,) = find_studies(run, summary)
    return found


def conclusions(rows: GatRows) -> dict[str, str]:
    frame = gat_tables(rows)[0].frame
    return dict(zip(frame["conclusion"], frame["verdict"], strict=True))


def test_conclusions_follow_from_what_was_measured(rows: GatRows) -> None:
    assert conclusions(rows) == {
        "DGL is faster than PyG on a CPU": "holds",
        "PyG is faster than DGL on a GPU": "not measured",
        "DGL and PyG reach other accuracies": "does not hold",
        "One chunk takes longer on four devices than on one": "does not hold in all 3",
        "More chunks take longer, rebuilt in each layer": "holds in all 6",
        "Cutting edges out in each layer costs time": "holds in all 9",
        "More chunks take longer because edges are cut out in each layer": "holds in all 6",
        "More chunks take longer, cut once": "does not hold in 6 of 9, holds in 3",
        "Chunks of consecutive nodes cost accuracy": "holds in all 6",
        "Chunks of clustered nodes cost accuracy": "not measured",
        "Chunks that keep all edges cost accuracy": "does not hold in all 3",
    }


@pytest.mark.slow
def test_two_runs_tell_nothing_and_made_up_features_no_accuracy(tmp_path: Path) -> None:
    two = made(tmp_path / "two", CORA, 2, ("pyg", "dgl"))
    found = conclusions(GatRows(two, summarise(two)))
    assert {words.partition(" in all")[0] for words in found.values()} == {
        "cannot be told",
        "not measured",
    }
    timed = made(tmp_path / "timed", PUBMED, 3, ("pyg", "dgl"))
    rows = GatRows(timed, summarise(timed))
    found = conclusions(rows)
    assert found["DGL is faster than PyG on a CPU"] == "holds"
    assert {words for claim, words in found.items() if "accurac" in claim} == {"not measured"}
    tables = {table.name: table.frame for table in gat_tables(rows)}
    assert tables["dearing_table2"]["test_accuracy"].isna().all()
    assert tables["dearing_table3_learnt"]["val_accuracy"].isna().all()
    (study,) = find_studies(timed, summarise(timed))
    assert "made up" in str(graph_chunks.chunk_accuracy(study))
    assert "made up" in str(frameworks.framework_accuracy(study))
    beside = tables["dearing_table3"]
    both = beside[beside["published_s"].notna() & beside["epoch_s"].notna()]
    assert set(zip(both["framework"], both["layout"], both["compute"], strict=True)) == {
        ("DGL", "seq", "CPU"), ("PyG", "seq", "CPU"),
    }  # fmt: skip
    again = pd.DataFrame(gat_verdict_rows(rows))
    again = again[again["published"].notna() & again["ours"].notna()]
    assert set(again["setting"]) >= {"pubmed, DGL, 2 chunks", "pubmed, DGL, 4 chunks"}


def test_stages_that_take_turns_tell_nothing_of_several_devices(tmp_path: Path) -> None:
    crowded = Story(audit=(Check("oversubscribed", "suspect", "node1: 4 ranks, 2 processors"),))
    cells = sweep(CORA, 3, ("dgl",))
    stories = {e.id: [crowded] for e in cells if str(e.layout) == "pp4"}
    run = load(make_run(tmp_path / "run", cells, machine=MACHINE, stories=stories))
    found = conclusions(GatRows(run, summarise(run)))
    assert {claim for claim, words in found.items() if words.startswith("cannot be told")} == {
        "One chunk takes longer on four devices than on one",
        "More chunks take longer, rebuilt in each layer",
        "More chunks take longer, cut once",
    }
    assert found["Cutting edges out in each layer costs time"] == "holds in all 3"


def test_stages_that_share_a_gpu_tell_nothing_of_several_devices(tmp_path: Path) -> None:
    shared = Story(audit=(Check("shared_gpu", "suspect", "rank 0 computed its 4 stages on GPU-0"),))
    cells = sweep(CORA, 3, ("dgl",))
    stories = {e.id: [shared] for e in cells if str(e.layout) == "pp4"}
    run = load(make_run(tmp_path / "run", cells, machine=MACHINE, stories=stories))
    found = conclusions(GatRows(run, summarise(run)))
    words = found["One chunk takes longer on four devices than on one"]
    assert words.startswith("cannot be told")


def test_chunks_on_one_device_are_no_chunks_of_four(tmp_path: Path) -> None:
    """Neither a conclusion about devices rests on them nor does a number published of four stand
    beside them, nor beside two.
    """
    model = {"name": "gat", "implementation": "dgl"}
    raw = {"model": model, "data": PUBMED, "train_steps": 8, "warmup_steps": 1, "test_steps": 1}
    cells = [
        Experiment.model_validate(
            raw | {"layout": layout, "microbatches": chunks, "rebuild": rebuild, "seed": seed}
        )
        for layout in ("seq", "pp2")
        for chunks in (1, 2, 4)
        for rebuild in ("once", "layer")
        for seed in range(3)
    ]
    run = load(make_run(tmp_path / "run", cells, machine=MACHINE))
    rows = GatRows(run, summarise(run))
    found = conclusions(rows)
    assert found["More chunks take longer, rebuilt in each layer"] == "holds in all 2"
    because = "More chunks take longer because edges are cut out in each layer"
    assert found[because] == "holds in all 4"
    told = pd.DataFrame(gat_verdict_rows(rows))
    told = told[told["phase"] == "train"]
    measured, published = told["ours"].notna(), told["published"].notna()
    assert "pubmed, DGL, 4 chunks, pp2" in set(told.loc[measured, "setting"])
    assert set(told.loc[measured & published, "setting"]) == set()


@pytest.mark.parametrize(
    ("checkpoint", "one_chunk", "said"),
    [("except_last", "does not hold", True), ("always", "not measured", False)],
)
def test_forwards_computed_again_are_no_cost_of_devices(
    tmp_path: Path, checkpoint: str, one_chunk: str, said: bool
) -> None:
    cells = [
        each.model_copy(update={"activation_checkpointing": checkpoint})
        if each.layout.stages > 1
        else each
        for each in sweep(CORA, 3, ("dgl",))
    ]
    run = load(make_run(tmp_path / "run", cells, machine=MACHINE))
    rows = GatRows(run, summarise(run))
    assert conclusions(rows)["One chunk takes longer on four devices than on one"] == one_chunk
    assert any("except_last" in note for note in gat_tables(rows)[0].notes) == said


TOLD = Interval(1.5, 1.2, 1.8, "3 pairs")
POINT = Claim("It is lost", "2", "accuracy lost", nothing=0.0, negligible=0.01)


@pytest.mark.parametrize(
    ("claim", "ours", "runs", "judged", "why"),
    [
        (Claim("It grows", "2", "x"), TOLD, 3, "holds", ""),
        (Claim("It falls", "2", "x", "less"), TOLD, 3, "does not hold", ""),
        (Claim("It differs", "2", "x", "either"), TOLD, 3, "holds", ""),
        (Claim("It grows", "2", "x"), TOLD, 2, "cannot be told", "2 runs are fewer than 3"),
        (Claim("It grows", "2", "x"), None, 0, "not measured", ""),
        (
            Claim("It grows", "2", "x"),
            Interval(1.1, 0.9, 1.3),
            3,
            "cannot be told",
            "the interval contains 1",
        ),
        (
            Claim("It grows", "2", "x"),
            Interval(1.1, None, None, "of 1 seed only"),
            3,
            "cannot be told",
            "no interval, of 1 seed only",
        ),
        (POINT, Interval(0.05, 0.02, 0.08), 3, "holds", ""),
        (POINT, Interval(0.0, 0.0, 0.0), 3, "does not hold", "less than 0.01"),
        (POINT, Interval(0.002, 0.001, 0.003), 3, "does not hold", "less than 0.01"),
        (POINT, Interval(0.0, -0.02, 0.02), 3, "cannot be told", "the interval contains 0"),
    ],
)
def test_a_verdict_rests_on_an_interval_of_three_runs(
    claim: Claim, ours: Interval | None, runs: int, judged: str, why: str
) -> None:
    finding = Finding(claim, "cora", 2.0, ours, runs)
    assert finding.judged == judged
    assert finding.verdict.startswith(f"{claim.text}: {judged}")
    assert finding.verdict.endswith(why)


def test_published_numbers_are_those_of_the_tables() -> None:
    numbers = {claim.text: of for claim, of in published_numbers().items()}
    assert numbers["DGL is faster than PyG on a CPU"]["pubmed"] == pytest.approx(798.5 / 338.6)
    assert numbers["PyG is faster than DGL on a GPU"]["cora"] == pytest.approx(13.3 / 7.7)
    chunks = numbers["More chunks take longer, rebuilt in each layer"]
    assert chunks["pubmed, DGL, 4 chunks"] == pytest.approx(0.0522 / 0.0604)
    lost = numbers["Chunks of consecutive nodes cost accuracy"]
    assert lost["pubmed, DGL, 4 chunks"] == pytest.approx(0.778 - 0.458)


def test_tables_have_published_and_ours_and_what_chunks_lost(rows: GatRows) -> None:
    tables = {table.name: table.frame for table in gat_tables(rows)}
    single = tables["dearing_table2"]
    both = single[single["published_ms"].notna() & single["epoch_ms"].notna()]
    assert set(zip(both["framework"], both["compute"], both["data"], strict=True)) == {
        ("PyG", "CPU", "cora"), ("DGL", "CPU", "cora"),
    }  # fmt: skip
    assert len(single) == len(read_published("dearing_table2_single_device")) + 1
    frame = tables["dearing_table3"]
    ours = frame[frame["epoch_s"].notna()]
    names = ["data", "framework", "layout", "chunks", "mode", "rebuild", "settings"]
    assert not ours.duplicated(names).any()
    assert len(ours) == 3 * 8
    lost = ours.set_index(["framework", "mode", "chunks", "rebuild"])["accuracy_lost"]
    assert lost["DGL", "contiguous", 4, "no"] == pytest.approx(0.3)
    assert lost["DGL", "halo", 4, "no"] == pytest.approx(0.0)
    assert lost["DGL", "whole graph", 1, "no"].isna().all()
    theirs = frame[frame["published_accuracy_lost"].notna() & (frame["chunks"] == 4)]
    assert theirs["published_accuracy_lost"].iloc[0] == pytest.approx(0.32)
    learnt = tables["dearing_table3_learnt"]
    of_four = learnt[learnt["published_val_accuracy"].notna() & (learnt["chunks"] == 4)]
    assert of_four["published_edges_lost"].iloc[0] == pytest.approx(74.8)


def test_a_run_without_a_valid_cell_prints_what_was_published(tmp_path: Path) -> None:
    cells = sweep(CORA, 1, ("dgl",))
    lost = Story(audit=(Check("labels", "invalid", "labels do not match"),))
    run = load(make_run(tmp_path / "run", cells, stories={e.id: [lost] for e in cells}))
    rows = GatRows(run, summarise(run))
    told, single, chunks, learnt = (table.frame for table in gat_tables(rows))
    assert set(told["verdict"]) == {"not measured"}
    assert len(single) == len(read_published("dearing_table2_single_device"))
    assert len(chunks) == len(learnt) == len(read_published("dearing_table3_pubmed"))


def drawn(figure: Figure | str) -> Figure:
    assert isinstance(figure, Figure), figure
    return figure


def test_rebuilt_chunks_have_a_marker_of_their_own_and_frameworks_a_panel(study: Study) -> None:
    points = published_points().chunks
    for figure in (
        drawn(graph_chunks.chunk_time(study, points)),
        drawn(graph_chunks.chunk_accuracy(study, points)),
    ):
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles == ["DGL", "ours", "PyG"]
        (legend,) = figure.legends
        names = [text.get_text() for text in legend.get_texts()]
        assert {"contiguous", "contiguous, rebuilt", "halo"} <= set(names)
        published = [
            axes.get_title(loc="left")
            for axes in figure.axes
            for line in axes.get_lines()
            if str(line.get_label()).startswith("published")
        ]
        assert published == ["DGL"]
    lines = drawn(graph_chunks.chunk_losses(study)).axes[0].get_lines()
    assert [str(line.get_label()) for line in lines] == ["contiguous", "halo"]


def test_chunks_that_all_were_rebuilt_are_called_so(tmp_path: Path) -> None:
    cells = [e for e in sweep(CORA, 1, ("dgl",)) if e.rebuild == "layer"]
    run = load(make_run(tmp_path / "run", cells, machine=MACHINE))
    (alone,) = find_studies(run, summarise(run))
    assert "rebuild" not in alone.summary
    (legend,) = drawn(graph_chunks.chunk_time(alone)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["pp4", "contiguous, rebuilt"]


def test_our_layers_stand_beside_the_libraries(run: Run, summary: pd.DataFrame) -> None:
    """Of equal settings alone; so many times as fast as the made-up machine is."""
    frame = frameworks_frame(run, summary)
    assert len(frame) == 8
    assert not frame.duplicated(["layout", "microbatches", "settings"]).any()
    for name, times in (("pyg", 5.0), ("dgl", 3.0)):
        assert frame[f"over_{name}"].to_numpy() == pytest.approx(times, rel=0.02)
        assert (frame[f"over_{name}_low"] < frame[f"over_{name}_high"]).all()
    names = {table.name for table in make_report_tables(run, summary)}
    assert "frameworks" in names
    alone = replace(run, cells=run.cells[run.cells["implementation"] == "fused"])
    assert frameworks_frame(alone, summary).empty


def test_a_ratio_says_whose_cells_are_flagged(tmp_path: Path) -> None:
    cells = [e for e in sweep(CORA, 3, ("fused", "dgl")) if e.layout.stages == 1]
    noisy = {
        e.id: [Story(audit=(Check("noisy", "suspect", "planted"),))]
        for e in cells
        if e.model.model_dump()["implementation"] == "dgl" and e.seed < 2
    }
    run = load(make_run(tmp_path / "run", cells, stories=noisy, machine=MACHINE))
    assert frameworks_frame(run, summarise(run))["flags"].tolist() == ["DGL: noisy 2 of 3"]


def test_frameworks_stand_beside_their_published_points(study: Study) -> None:
    points = published_points().for_frameworks(study)
    assert points is not None
    for figure, column in (
        (drawn(frameworks.framework_time(study, points)), "avg_epoch_ms"),
        (drawn(frameworks.framework_accuracy(study, points)), "test_acc"),
    ):
        (axes,) = figure.axes
        places = [label.get_text().replace("\n", " ") for label in axes.get_xticklabels()]
        assert places == ["ours CPU", "DGL CPU", "PyG CPU", "DGL GPU", "PyG GPU"]
        ours, theirs = (
            next(one for one in axes.get_lines() if one.get_label() == label)
            for label in ("seq, measured", "published")
        )
        assert sorted(np.asarray(ours.get_xdata()).tolist()) == [0, 1, 2]
        assert sorted(np.asarray(theirs.get_ydata()).tolist()) == sorted(points[column])
    assert "one framework" in str(
        frameworks.framework_time(
            replace(study, summary=study.summary[study.summary["layout"] == "pp4"])
        )
    )
