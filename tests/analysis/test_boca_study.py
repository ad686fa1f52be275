"""Boca's study of sampled training: what is compared, and that verdicts follow from intervals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from analysis.cli import main
from analysis.figures import sampled as sampled_figures
from analysis.figures.studies import Study, find_studies
from analysis.figures.style import layout_look
from analysis.loading.run import Run, load
from analysis.papers.boca_claims import published_seconds
from analysis.papers.boca_findings import boca_findings
from analysis.papers.boca_runs import BocaRows
from analysis.papers.boca_tables_beside_ours import boca_finding_rows, boca_tables
from analysis.papers.gat_runs import GatRows
from analysis.report.report_pages import published_points, write_report_pages
from analysis.report.report_tables import make_report_tables
from analysis.summary.frameworks import frameworks_frame
from analysis.summary.summary_table import summarise
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.tools.cells import SAMPLED, sampled
from tests.tools.make_run import Machine, Story, make_run

STEPS = {"train_steps": 21, "test_steps": 0, "test_every": None, "warmup_steps": 1}
LIBRARIES = {
    "ours": ("fused", {}),
    "ours once": ("fused", {"semantics": "once"}),
    "pyg": ("pyg", {"sampler": "pyg"}),
    "dgl": ("dgl", {"sampler": "dgl"}),
}


def cell(library: str, layout: str, repeat: int, workers: int = 1, **changes: Any) -> Experiment:
    implementation, sampling = LIBRARIES[library]
    settings: dict[str, Any] = STEPS | {"layout": layout, "repeat": repeat, "batch_size": 16}
    settings |= {"model": {"name": "sage", "layers": 2, "implementation": implementation}}
    settings["data"] = {**SAMPLED["data"], "nodes": 200, "classes": 13}
    drawn = {"fanouts": [3, 3], "workers": workers, **sampling}
    return sampled(**settings | {"sampling": drawn} | changes)


def cells(repeats: int = 3) -> list[Experiment]:
    found = [
        cell(library, layout, repeat)
        for repeat in range(repeats)
        for library in LIBRARIES
        for layout in ("seq", "dp2", "dp4")
    ]
    return found + [cell("pyg", "dp4", repeat, workers=2) for repeat in range(repeats)]


def drawing_s(experiment: Experiment) -> float:
    """DGL takes as much longer for each rank; a second worker of PyG's makes it slower."""
    assert experiment.sampling is not None
    if experiment.sampling.sampler == "ours":
        return 1e-4
    ranks = experiment.layout.replicas
    slow = {"pyg": 1.0, "dgl": 1.5 * ranks * ranks}[experiment.sampling.sampler]
    return 0.05 * slow * (1.0 + experiment.sampling.workers)


MACHINE = Machine(noise=0.002, runs_differ=0.001, seconds_a_unit=3e-8, drawing_s=drawing_s)


def made(root: Path, **options: Any) -> Run:
    return load(make_run(root, cells(), machine=MACHINE, **options))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("study") / "run")


@pytest.fixture(scope="module")
def summary(run: Run) -> pd.DataFrame:
    return summarise(run)


@pytest.fixture(scope="module")
def rows(run: Run, summary: pd.DataFrame) -> BocaRows:
    return BocaRows(run, summary)


def conclusions(rows: BocaRows) -> dict[str, str]:
    frame = boca_tables(rows)[0].frame
    return dict(zip(frame["conclusion"], frame["verdict"], strict=True))


def test_conclusions_follow_from_what_was_measured(rows: BocaRows) -> None:
    """DGL waits for most of a step, and PyG with two workers; with one it does not."""
    assert conclusions(rows) == {
        "Sampling is the bottleneck: more than half of a step waits for its mini-batch": (
            "holds in 4 of 7, does not hold in 3"
        ),
        "Sampling is the bottleneck of ours": "does not hold in all 6",
        "PyG is faster on two devices than on one": "holds",
        "DGL is slower on two devices than on one": "holds",
        "Ours is faster on two devices than on one": "holds in all 2",
        "PyG is slower on four devices than on two": "does not hold",
        "DGL is slower on four devices than on two": "holds",
        "Ours is faster on four devices than on two": "holds in all 2",
        "More data workers make it slower": "holds",
        "Several data workers on four devices hang": "does not hold",
    }


def test_published_numbers_are_those_of_the_table(rows: BocaRows) -> None:
    seconds = published_seconds()
    assert len(seconds) == 36
    assert seconds["GraphSAGE", "DGL", 2, 512] == (8, 4369.0)
    published = {(one.claim.text, one.setting): one.published for one in boca_findings(rows)}
    slower = published["DGL is slower on two devices than on one", "GraphSAGE, DGL, batch 512"]
    assert slower == pytest.approx(3789 / 4369)
    four = published["PyG is slower on four devices than on two", "GAT, PyG, batch 2048"]
    assert four == pytest.approx(1383 / 2211)


def test_ours_stands_beside_a_published_number_of_the_same_batch(tmp_path: Path) -> None:
    data = {"name": "synthetic-citation", "nodes": 4000, "features": 8, "classes": 60}
    machine = replace(MACHINE, seconds_a_unit=2e-9)
    changes = {"batch_size": 512, "data": data}
    both = [cell("dgl", n, repeat, **changes) for repeat in range(3) for n in ("seq", "dp2")]
    run = load(make_run(tmp_path / "run", both, machine=machine))
    rows = BocaRows(run, summarise(run))
    (found,) = [
        row
        for row in boca_finding_rows(rows)
        if row["setting"] == "DGL, batch 512" and row["quantity"] == "speedup"
    ]
    assert found["published"] == pytest.approx(3789 / 4369)
    assert found["ours_low"] < found["ours"] < found["ours_high"] < 1.0
    table = boca_tables(rows)[1].frame
    mine = table[(table["library"] == "DGL") & table["epochs_s"].notna()]
    assert mine["published_s"].tolist() == [3789.0, 4369.0]
    seconds = [row.row.epoch.value for row in rows if row.row.epoch]
    assert mine["epochs_s"].tolist() == pytest.approx([50 * one for one in seconds])
    assert mine["told_from"].str.startswith("measured, ").all()


def test_ranks_that_take_turns_and_cells_that_failed_tell_nothing(tmp_path: Path) -> None:
    crowded = Story(audit=(Check("oversubscribed", "suspect", "node1: 4 ranks, 2 processors"),))
    stories = {e.id: [crowded] for e in cells() if e.layout.replicas > 1}
    several = [e for e in cells() if e.sampling is not None and e.sampling.workers > 1]
    stories |= {several[0].id: [Story(status="failed", stop_at=3)]}
    run = made(tmp_path / "run", stories=stories)
    rows = BocaRows(run, summarise(run))
    found = conclusions(rows)
    told = {claim for claim, words in found.items() if not words.startswith("cannot be told")}
    assert told == {
        "Sampling is the bottleneck: more than half of a step waits for its mini-batch",
        "Sampling is the bottleneck of ours",
    }
    verdicts = {row["verdict"] for row in boca_finding_rows(rows)}
    assert any("its ranks took turns on fewer processors" in words for words in verdicts)
    assert any("33% of 3 cells did not end" in words for words in verdicts)


def test_a_library_stands_beside_ours_that_draws_as_it_does(
    run: Run, summary: pd.DataFrame
) -> None:
    beside = frameworks_frame(run, summary)
    assert len(beside) == 6
    once = beside["settings"].str.contains("once")
    assert beside["pyg_ms"].notna().tolist() == once.tolist()
    assert beside["dgl_ms"].notna().tolist() == (~once).tolist()
    assert (beside["over_dgl"].dropna() > 2.0).all()


def test_the_report_has_the_tables_of_sampled_runs_and_none_of_whole_graphs(
    run: Run, summary: pd.DataFrame
) -> None:
    tables = {table.name: table for table in make_report_tables(run, summary)}
    assert {"sampled", "boca_conclusions", "boca_table2"} <= tables.keys()
    assert not [name for name in tables if name.startswith("dearing")]
    assert len(tables["sampled"].frame) == 13
    notes = " ".join(tables["boca_table2"].notes)
    assert "use_ddp not set" in notes
    assert "includes loading the data set" in notes
    study = tables["corrected_study"].frame
    assert study[(study["study"] == "boca") & study["ours"].notna()].shape[0] > 10


def test_sampled_gat_is_no_row_of_whole_graphs(tmp_path: Path) -> None:
    gat = {"model": {"name": "gat", "implementation": "dgl"}}
    run = load(make_run(tmp_path / "run", [cell("dgl", "seq", 0, **gat)]))
    summary = summarise(run)
    assert not GatRows(run, summary).rows
    (row,) = BocaRows(run, summary)
    assert row.label == "synthetic-citation, GAT, seq, DGL, batch 16, 1 worker"


@pytest.fixture(scope="module")
def study(run: Run, summary: pd.DataFrame) -> Study:
    (found,) = find_studies(run, summary)
    return found


def drawn(figure: Figure | str) -> Figure:
    assert isinstance(figure, Figure), figure
    return figure


def legend_of(figure: Figure) -> set[str]:
    (legend,) = figure.legends
    return {text.get_text() for text in legend.get_texts()}


def test_parts_of_a_step_add_up_to_it(study: Study, summary: pd.DataFrame) -> None:
    figure = drawn(sampled_figures.step_parts(study))
    one, two = figure.axes
    assert [axes.get_title(loc="left") for axes in (one, two)] == ["workers 1", "workers 2"]
    assert one.get_ylabel() == "step (ms)"
    tops: dict[float, float] = {}
    for bar in one.patches:
        assert isinstance(bar, Rectangle)
        place = round(bar.get_x(), 6)
        assert bar.get_y() == pytest.approx(tops.get(place, 0.0))
        tops[place] = bar.get_y() + bar.get_height()
    rows = summary[summary["workers"] == 1]
    assert sorted(tops.values()) == pytest.approx(sorted(1e3 * rows["mean_s"]))
    assert legend_of(figure) == {
        "wait for drawing", "wait for features", "computing", "averaging gradients",
        "waiting for ranks, and rest", "rest",
    }  # fmt: skip
    assert [text.get_text() for text in one.texts] == ["ours\nonce", "ours\nresample", "DGL", "PyG"]


def test_intervals_of_bars_and_speedups_go_on_in_arrows_and_names_are_above(study: Study) -> None:
    far = study.summary.assign(mean_high=99.0, speedup_low=0.1, speedup_high=99.0)
    far = far.assign(mean_low=1e-6)
    for draw in (sampled_figures.step_parts, sampled_figures.epoch_speedup):
        figure = drawn(draw(replace(study, summary=far)))
        figure.draw_without_rendering()
        axes = figure.axes[0]
        top = axes.get_ylim()[1]
        arrows = [line for line in axes.get_lines() if line.get_marker() == "^"]
        arrows = [line for line in arrows if not line.get_clip_on()]
        assert arrows
        assert {float(y) for line in arrows for y in np.asarray(line.get_ydata())} == {top}
    bars = drawn(sampled_figures.step_parts(study))
    bars.draw_without_rendering()
    axes = bars.axes[0]
    names = [text.get_window_extent() for text in axes.texts]
    assert all(name.y0 > axes.get_window_extent().y1 for name in names)
    # With its title above the names the panel reaches further up than they do.
    reach = axes.get_tightbbox()
    assert reach is not None
    assert all(name.y1 < reach.y1 for name in names)


def test_one_rank_waits_for_no_rank(study: Study) -> None:
    """What is left of its step is the rest alone; of several ranks it is with their waiting."""
    bars = drawn(sampled_figures.step_parts(study)).axes[0]
    layouts = [text.get_text() for text in bars.get_xticklabels()]
    heights = {
        str(part.get_label()): [round(float(one.get_height()), 9) for one in part.patches]
        for part in bars.containers
        if isinstance(part, BarContainer)
    }
    for alone, several, layout in zip(
        heights["rest"], heights["waiting for ranks, and rest"], layouts, strict=True
    ):
        assert (alone > 0.0, several > 0.0) == (layout == "seq", layout != "seq")
    only_one = replace(study, summary=study.summary[study.summary["layout"] == "seq"])
    legend = legend_of(drawn(sampled_figures.step_parts(only_one)))
    assert "rest" in legend and "waiting for ranks, and rest" not in legend


def test_scaling_has_the_ideal_the_layouts_colours_and_the_published_points_of_reddit(
    study: Study,
) -> None:
    speedup = drawn(sampled_figures.epoch_speedup(study))
    axes = speedup.axes[0]
    (ideal,) = [line for line in axes.get_lines() if line.get_label() == "ideal"]
    assert list(ideal.get_ydata()) == [1.0, 2.0, 4.0]
    marks = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    colours = {str(line.get_color()) for line in marks if line.get_marker() in "oDs^"}
    assert colours == {layout_look(name).colour for name in ("seq", "dp2", "dp4")}
    assert legend_of(speedup) == {
        "ideal", "ours, once", "ours, resample", "DGL", "PyG", "seq", "dp2", "dp4",
    }  # fmt: skip
    points = published_points()
    assert points.for_sampled(study) is None
    of_reddit = points.for_sampled(replace(study, data="reddit"))
    assert of_reddit is not None
    of_reddit = of_reddit.assign(batch_size=of_reddit["batch_size"].replace(512, 16))
    epoch = drawn(sampled_figures.epoch_time(study, of_reddit))
    assert epoch.axes[0].get_ylabel() == "epoch (s)"
    crosses = [line for line in epoch.axes[0].get_lines() if line.get_marker() == "x"]
    seconds = [list(line.get_ydata()) for line in crosses]
    assert seconds == [
        pytest.approx([3789 / 50, 4369 / 50, 5932 / 50]),
        pytest.approx([4758 / 50, 2818 / 50, 4306 / 50]),
    ]
    assert "published" in legend_of(epoch)


@pytest.mark.parametrize("kind", ["step-parts", "epoch-time", "epoch-speedup"])
def test_at_a_columns_width_nothing_is_cut_off(run: Run, tmp_path: Path, kind: str) -> None:
    arguments = ["report", str(run.root), "--only", kind, "--width", "84mm", "--format", "png"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    with Image.open(path) as picture:
        grey = picture.convert("L")
    edges = [
        grey.crop((0, 0, 2, grey.height)),
        grey.crop((grey.width - 2, 0, grey.width, grey.height)),
    ]
    assert all(edge.getextrema() == (255, 255) for edge in edges)


def test_a_library_before_anothers_layers_is_named_so(tmp_path: Path) -> None:
    model = {"name": "sage", "layers": 2, "implementation": "fused"}
    both = [cell("dgl", n, repeat, model=model) for repeat in range(3) for n in ("seq", "dp2")]
    run = load(make_run(tmp_path / "run", both, machine=MACHINE))
    rows = BocaRows(run, summarise(run))
    assert {row.library for row in rows} == {"DGL before layers of ours"}
    assert conclusions(rows)["DGL is slower on two devices than on one"] == "not measured"
    (study,) = find_studies(run, summarise(run))
    assert "DGL, ours's layers" not in legend_of(drawn(sampled_figures.epoch_speedup(study)))
    assert "DGL before layers of ours" in legend_of(drawn(sampled_figures.epoch_speedup(study)))


@pytest.mark.slow
def test_the_page_has_a_section_of_sampled_training(
    run: Run, summary: pd.DataFrame, tmp_path: Path
) -> None:
    page = write_report_pages(run, tmp_path / "out", summary).read_text(encoding="utf-8")
    assert "Sampled mini-batches" in page
    assert "To draw a mini-batch is part of its step." in page
    found = {path.name for path in (tmp_path / "out" / "figures").glob("*.png")}
    for kind in ("step-parts", "epoch-time", "epoch-speedup"):
        assert f"{kind}-sage-synthetic-citation.png" in found
    # Against micro-batches, of which each rank has one, nothing is drawn.
    assert not [name for name in found if name.startswith(("speedup", "efficiency", "bubble"))]
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    answer = [text.index(words) for words in ("## Sampled", "Boca's conclusions", "## Published")]
    assert text.index("](figures/epoch-speedup") < text.index("## Summary") < answer[0]
    assert answer == sorted(answer)
    assert text.count("Boca's conclusions on sampled training") == 1


def test_seconds_of_an_epoch_are_plain_numbers(study: Study) -> None:
    figure = drawn(sampled_figures.epoch_time(study))
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis
    told = [*axis.get_majorticklabels(), *axis.get_minorticklabels()]
    words = [label.get_text() for label in told if label.get_text()]
    assert words
    assert all(float(word) > 0 and "e" not in word for word in words)


def test_pipelines_are_no_ranks_of_the_study(tmp_path: Path) -> None:
    """They stand in the table of sampled training and among the bars of its steps."""
    layouts = ("seq", "dp2", "dp2-pp2")
    both = [cell("ours", n, repeat) for repeat in range(3) for n in layouts]
    run = load(make_run(tmp_path / "run", both, machine=MACHINE))
    summary = summarise(run)
    assert [str(row.row.layout) for row in BocaRows(run, summary)] == ["seq", "dp2"]
    (sampled_table,) = [t for t in make_report_tables(run, summary) if t.name == "sampled"]
    assert set(sampled_table.frame["layout"]) == set(layouts)
    (study,) = find_studies(run, summary)
    legend = legend_of(drawn(sampled_figures.epoch_speedup(study)))
    assert {"seq", "dp2"} <= legend
    assert "dp2-pp2" not in legend
    bars = drawn(sampled_figures.step_parts(study)).axes[0]
    assert [text.get_text() for text in bars.get_xticklabels()] == list(layouts)


def test_sampled_models_that_the_study_has_not_are_in_the_table_too(tmp_path: Path) -> None:
    gcn = {"model": {"name": "gcn"}}
    run = load(make_run(tmp_path / "run", [cell("ours", "seq", r, **gcn) for r in range(3)]))
    tables = {table.name: table.frame for table in make_report_tables(run, summarise(run))}
    assert tables["sampled"]["model"].tolist() == ["gcn"]
    assert "boca_conclusions" not in tables


def test_learning_links_is_no_row_of_the_study(tmp_path: Path) -> None:
    """Its epoch is all links, which the published seconds of all nodes say nothing of."""
    task = {"task": {"name": "links", "embedding": 13}}
    both = [cell("ours", n, r, **task) for r in range(3) for n in ("seq", "dp2")]
    run = load(make_run(tmp_path / "run", both, machine=MACHINE))
    assert run.cells["valid"].all()
    summary = summarise(run)
    assert not BocaRows(run, summary).rows
    assert "boca_conclusions" not in {t.name for t in make_report_tables(run, summary)}
