"""Figures: which there are, their labels and units, one look a layout, files that last."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

import analysis
from analysis.figures import catalog, graph_chunks, loss_curves, speedup
from analysis.figures.catalog import (
    FIGURE_KINDS,
    PublishedPoints,
    make_figures,
)
from analysis.figures.hover import marks_of
from analysis.figures.panels import MAX_PANELS, panel_grid, title_panels
from analysis.figures.studies import Study, find_studies, settings_label
from analysis.figures.style import (
    COLUMN_IN,
    FULL_IN,
    MODE_DASHES,
    MODE_MARKERS,
    at_width,
    layout_look,
    layout_order,
    new_figure,
    save_figure,
    styled,
)
from analysis.loading.run import Run
from analysis.render.interval_text import interval_text
from analysis.statistics.intervals import Interval
from gnnhpc.core.bounds import bound
from gnnhpc.core.layout import Layout
from gnnhpc.data.settings import SyntheticCitation
from gnnhpc.records.schema import Check
from tests.tools.make_run import Story, make_run, small_sweep

LAYOUTS = ("seq", "pp2", "pp4", "dp2-pp2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("figures") / "run"
    contiguous = [e for e in small_sweep(1, chunks="contiguous") if e.model.name == "gat"]
    return analysis.load(make_run(root, [*small_sweep(2), *contiguous]))


@pytest.fixture(scope="module")
def summary(run: Run) -> pd.DataFrame:
    return analysis.summarise(run)


@pytest.fixture(scope="module")
def vig(run: Run, summary: pd.DataFrame) -> Study:
    return next(study for study in find_studies(run, summary) if study.model == "vig")


@pytest.fixture(scope="module")
def gat(run: Run, summary: pd.DataFrame) -> Study:
    return next(study for study in find_studies(run, summary) if study.model == "gat")


def test_cells_of_other_settings_are_in_no_mean_of_a_figure(tmp_path: Path) -> None:
    """Of two graphs under one name, and of two batch sizes."""
    images = [e for e in small_sweep(1) if e.batch_size]
    images += [e.model_copy(update={"batch_size": 50}) for e in images]
    graphs = [e for e in small_sweep(1) if not e.batch_size]
    graphs = [
        e.model_copy(update={"data": SyntheticCitation(nodes=nodes)})
        for nodes in (2000, 3000)
        for e in graphs
    ]
    run = analysis.load(make_run(tmp_path / "run", [*images, *graphs]))
    gat, vig = find_studies(run, analysis.summarise(run))
    lines = drawn(graph_chunks.chunk_losses(gat)).axes[0].get_lines()
    names = [str(line.get_label()) for line in lines]
    assert names == ["halo, data nodes 2000", "halo, data nodes 3000"]
    panels = [one.get_title(loc="left") for one in drawn(loss_curves.replica_losses(vig)).axes]
    assert panels == ["batch size 50", "batch size 100"]


def test_a_setting_that_some_cells_do_not_have_is_drawn_and_named(tmp_path: Path) -> None:
    replicas = [e for e in small_sweep(1) if e.batch_size and e.layout.replicas > 1]
    in_buckets = [e.model_copy(update={"bucket_mib": 0.5}) for e in replicas]
    run = analysis.load(make_run(tmp_path / "run", [*replicas, *in_buckets]))
    (study,) = find_studies(run, analysis.summarise(run))
    boxes = drawn(speedup.step_times(study)).axes[0]
    names = [label.get_text() for label in boxes.get_yticklabels()]
    assert names == [
        f"dp2-pp2, {microbatches}, {buckets}"
        for microbatches in (5, 10)
        for buckets in ("buckets of 0.5 MiB", "no buckets")
    ]
    assert len(boxes.patches) == len(names)


def drawn(figure: Figure | str) -> Figure:
    assert isinstance(figure, Figure), figure
    return figure


def colours_by_label(figure: Figure) -> dict[str, str]:
    found = {}
    for axes in figure.axes:
        for line in axes.get_lines():
            name = str(line.get_label()).partition(",")[0]
            if name in LAYOUTS:
                found[name] = to_hex(line.get_color())
    return found


def test_a_layout_has_one_colour_in_every_figure(vig: Study, gat: Study) -> None:
    expected = {name: layout_look(name).colour for name in LAYOUTS}
    for figure in (
        speedup.speedup(vig),
        speedup.efficiency(vig),
        speedup.bubble(vig),
        loss_curves.training_loss(vig),
        speedup.speedup(gat),
        graph_chunks.chunk_time(gat),
        graph_chunks.chunk_accuracy(gat),
    ):
        assert colours_by_label(drawn(figure)) == expected
    boxes = [
        to_hex(patch.get_facecolor()) for patch in drawn(speedup.step_times(vig)).axes[0].patches
    ]
    assert set(boxes) == set(expected.values())


def test_a_marker_means_a_mode_in_every_panel_where_one_panel_has_several(tmp_path: Path) -> None:
    """And is then no layout's in the legend; no point lies on the frame, published ones neither."""
    graphs = [e for e in small_sweep(1) if not e.batch_size]
    other = [
        e.model_copy(update={"data": SyntheticCitation(nodes=3000), "chunks": "halo"})
        for e in graphs
    ]
    first = [
        e.model_copy(update={"data": SyntheticCitation(nodes=2000), "chunks": mode})
        for e in graphs
        for mode in MODE_MARKERS
    ]
    run = analysis.load(make_run(tmp_path / "run", [*first, *other]))
    (study,) = find_studies(run, analysis.summarise(run))
    published = pd.DataFrame({"chunks": [1, 9], "avg_epoch_s": [0.05, 0.04]})
    figure = drawn(graph_chunks.chunk_time(study, published))
    assert len(figure.axes) == 2
    for axes, modes in zip(figure.axes, (set(MODE_MARKERS), {"halo"}), strict=True):
        ours = [line for line in axes.get_lines() if line.get_ls() in MODE_DASHES.values()]
        shown = {line.get_marker() for line in ours if line.get_marker() not in ("None", "x", "_")}
        assert shown == {MODE_MARKERS[mode] for mode in modes}
        low, high = axes.get_xlim()
        for line in axes.get_lines():
            assert all(low < x < high for x in line.get_xdata())
    legend = figure.legends[0]
    markers = {
        text.get_text(): handle.get_marker()
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
    }
    assert {markers[name] for name in markers if name in LAYOUTS} == {"None"}


def test_the_four_layouts_differ_in_grey_and_in_more_than_colour() -> None:
    looks = [layout_look(name) for name in LAYOUTS]
    grey = sorted(float(np.dot(to_rgb(one.colour), (0.2126, 0.7152, 0.0722))) for one in looks)
    assert min(np.diff(grey)) > 0.08
    assert len({one.marker for one in looks}) == 4
    assert len({one.hatch for one in looks}) == 4
    assert len({one.dash for one in looks}) == 4


@given(
    st.lists(
        st.builds(Layout, st.integers(1, 16), st.integers(1, 16)).map(str), min_size=2, unique=True
    )
)
def test_looks_are_distinct_and_always_the_same(names: list[str]) -> None:
    colours = [layout_look(name).colour for name in names]
    assert len(set(colours)) == len(names)
    assert colours == [layout_look(name).colour for name in names]


def test_layouts_are_ordered_by_size() -> None:
    names = ["pp4", "dp2-pp2", "seq", "dp2", "pp2", "dp4-pp4"]
    assert sorted(names, key=layout_order) == ["seq", "pp2", "dp2", "pp4", "dp2-pp2", "dp4-pp4"]


def test_axes_name_what_they_show_with_units(vig: Study, gat: Study) -> None:
    for figure, across, up in (
        (speedup.speedup(vig), "micro-batches a mini-batch", "speedup over seq (ratio)"),
        (speedup.speedup(gat), "chunks a replica", "speedup over seq (ratio)"),
        (speedup.efficiency(vig), "micro-batches a mini-batch", "efficiency (ideal / step time)"),
        (speedup.bubble(vig), "micro-batches a mini-batch", "waiting (% of rank-time)"),
        (
            speedup.step_times(vig),
            "difference from the median of all steps (%)",
            "layout, micro-batches",
        ),
        (loss_curves.training_loss(vig), "training step", "training loss"),
        (loss_curves.replica_losses(vig), "training step", "training loss"),
        (graph_chunks.chunk_time(gat), "chunks of the graph (all replicas)", "epoch time (s)"),
        (graph_chunks.chunk_accuracy(gat), "chunks of the graph (all replicas)", "test accuracy"),
        (graph_chunks.chunk_losses(gat), "chunks", "edges kept (%)"),
    ):
        axes = drawn(figure).axes[0]
        assert (axes.get_xlabel(), axes.get_ylabel()) == (across, up)
        assert drawn(figure).get_figwidth() in (COLUMN_IN, FULL_IN)


def test_speedups_stand_with_their_interval_and_bound(vig: Study) -> None:
    figure = drawn(speedup.speedup(vig))
    (axes,) = figure.axes
    row = vig.summary[
        (vig.summary["layout"] == "pp4")
        & (vig.summary["microbatches"] == 10)
        & (vig.summary["phase"] == "train")
    ].iloc[0]
    line = next(one for one in axes.get_lines() if one.get_label() == "pp4")
    assert float(np.asarray(line.get_ydata())[-1]) == row["speedup"]
    ticks = [one for one in axes.get_lines() if one.get_marker() == "_"]
    heights = {round(float(y), 9) for tick in ticks for y in np.asarray(tick.get_ydata())}
    assert round(bound(1, 4, 10), 9) in heights
    assert round(bound(2, 2, 5), 9) in heights
    bars = [
        segment[:, 1]
        for bar in axes.containers
        for segments in bar.lines[2]
        for segment in segments.get_segments()
    ]
    assert any(
        low == pytest.approx(row["speedup_low"]) and high == pytest.approx(row["speedup_high"])
        for low, high in bars
    )
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*LAYOUTS, "bound"]


def test_intervals_are_seen_in_front_of_marks_and_none_is_drawn_without_bounds(vig: Study) -> None:
    (axes,) = drawn(speedup.speedup(vig)).axes
    (bars, *_) = [one for one in axes.containers if one.lines[2]]
    marks = [one for one in axes.get_lines() if one.get_label() in LAYOUTS]
    caps = bars.lines[1]
    assert min(cap.get_zorder() for cap in caps) > max(mark.get_zorder() for mark in marks)
    assert min(cap.get_markersize() for cap in caps) > max(one.get_markersize() for one in marks)
    assert to_hex(caps[0].get_markeredgecolor()) not in set(colours_by_label(axes.figure).values())

    unknown = vig.summary.assign(speedup_low=np.nan, speedup_high=np.nan)
    figure = drawn(speedup.speedup(replace(vig, summary=unknown)))
    assert not figure.axes[0].containers


def test_an_interval_that_goes_on_beyond_the_axis_ends_in_an_arrow(vig: Study) -> None:
    """One of few runs may be as wide as ten times all marks, which would leave these no height."""
    (axes,) = drawn(speedup.speedup(vig)).axes
    assert all(one.get_clip_on() for one in axes.get_lines())
    summary = vig.summary.copy()
    chosen = (summary["layout"] == "pp4") & (summary["microbatches"] == 10)
    summary.loc[chosen, "speedup_high"] = 300.0
    (axes,) = drawn(speedup.speedup(replace(vig, summary=summary))).axes
    top = axes.get_ylim()[1]
    assert top < 10
    arrows = [one for one in axes.get_lines() if not one.get_clip_on()]
    assert [float(np.asarray(one.get_ydata())[0]) for one in arrows] == [top]
    assert [one.get_marker() for one in arrows] == ["^"]


def test_marks_say_their_numbers_where_they_are(vig: Study, gat: Study, tmp_path: Path) -> None:
    rows = vig.summary[vig.summary["phase"] == "train"]
    figure = drawn(speedup.speedup(vig))
    (png, _) = save_figure(figure, tmp_path, "speedup")
    marks = marks_of(figure)
    assert len(marks) == len(rows)
    row = rows[(rows["layout"] == "pp4") & (rows["microbatches"] == 10)].iloc[0]
    interval = Interval(row["speedup"], row["speedup_low"], row["speedup_high"])
    assert f"pp4, 10: {interval_text(interval)}; bound 3.08" in [mark.text for mark in marks]
    with Image.open(png) as image:
        pixels = image.convert("L")
        for mark in marks:
            x, y = round(mark.x * pixels.width), round(mark.y * pixels.height)
            around = pixels.crop((x - 4, y - 4, x + 5, y + 5))
            assert min(around.tobytes()) < 190, mark.text
    for other in (
        speedup.efficiency(gat), speedup.bubble(gat), speedup.step_times(vig),
        graph_chunks.chunk_time(gat), graph_chunks.chunk_accuracy(gat),
        loss_curves.training_loss(vig), loss_curves.replica_losses(vig),
    ):  # fmt: skip
        save_figure(drawn(other), tmp_path, "other")
        assert marks_of(drawn(other)), drawn(other).axes[0].get_ylabel()


def test_a_row_that_is_not_to_be_believed_is_hollow(vig: Study) -> None:
    summary = vig.summary.assign(valid=vig.summary["layout"] != "pp2")
    figure = drawn(speedup.speedup(replace(vig, summary=summary)))
    hollow = [one for one in figure.axes[0].get_lines() if one.get_markerfacecolor() == "white"]
    (points,) = hollow
    assert to_hex(points.get_color()) or points.get_markeredgecolor() == layout_look("pp2").colour
    assert len(np.asarray(points.get_xdata())) == 2


def test_every_outlier_is_drawn(vig: Study) -> None:
    steps = vig.steps.copy()
    here = (steps["layout"] == "pp2") & (steps["phase"] == "train") & steps["kept"]
    chosen = steps.index[here][:3]
    steps.loc[chosen, "step_s"] *= np.array([3.0, 5.0, 9.0])
    figure = drawn(speedup.step_times(replace(vig, steps=steps)))
    shown = np.concatenate(
        [
            np.asarray(line.get_xdata(), float)
            for line in figure.axes[0].get_lines()
            if line.get_linestyle() == "None"
        ]
    )
    # In percent of a median that three steps hardly move.
    assert sorted(round(v / 100) for v in shown if v > 100) == [2, 4, 8]


@pytest.mark.parametrize("width_in", [FULL_IN, COLUMN_IN])
def test_rows_with_long_names_are_within_the_figure(vig: Study, width_in: float) -> None:
    settings = {f"data setting {n}": f"its value {n}" for n in range(20)}
    long = replace(vig, steps=vig.steps.assign(**settings), variants=tuple(settings))
    with at_width(width_in):
        figure = drawn(speedup.step_times(long))
    figure.draw_without_rendering()
    inside = figure.bbox
    for axes in figure.axes:
        for text in [*axes.get_yticklabels(), axes.yaxis.label, axes.xaxis.label, axes.title]:
            box = text.get_window_extent()
            assert inside.x0 <= box.x0
            assert box.x1 <= inside.x1
            assert inside.y0 <= box.y0
            assert box.y1 <= inside.y1
        assert axes.get_window_extent().width > 0.2 * inside.width


def test_fewer_than_five_steps_are_points_without_a_box(vig: Study) -> None:
    few = vig.steps[vig.steps["kept"]].groupby(["layout", "microbatches", "phase"], observed=True)
    for count, boxes in ((4, 0), (5, 9)):
        figure = drawn(speedup.step_times(replace(vig, steps=few.head(count))))
        train = figure.axes[0]
        assert len(train.patches) == boxes
        points = [line for line in train.get_lines() if line.get_linestyle() == "None"]
        assert boxes or sum(len(line.get_xdata()) for line in points) == 9 * count


def test_data_parallel_copies_have_a_curve_each_where_their_losses_are_known(vig: Study) -> None:
    def labels(study: Study, published: pd.DataFrame | None = None) -> list[str]:
        (legend,) = drawn(loss_curves.replica_losses(study, published)).legends
        return [text.get_text() for text in legend.get_texts()]

    assert labels(vig) == ["seq", "dp2-pp2, all copies"]
    ranks = vig.ranks.assign(replica_loss=vig.ranks["loss"] + vig.ranks["replica"])
    known = replace(vig, ranks=ranks)
    assert labels(known) == ["seq", "dp2-pp2, copy 0", "dp2-pp2, copy 1"]
    points = pd.DataFrame({"step": [0, 5], "seq": [2.0, 1.0], "dp_copy0": 2.0, "dp_copy1": 3.0})
    assert labels(known, points)[-1] == "published"


def test_published_points_stand_beside_ours(gat: Study) -> None:
    points = pd.DataFrame({"chunks": [1, 2], "avg_epoch_s": [0.05, 0.04], "val_acc": [0.778, 0.6]})
    for figure, values in (
        (graph_chunks.chunk_time(gat, points), [0.05, 0.04]),
        (graph_chunks.chunk_accuracy(gat, points), [0.778, 0.6]),
    ):
        lines = drawn(figure).axes[0].get_lines()
        line = next(one for one in lines if "published" in str(one.get_label()))
        assert list(np.asarray(line.get_ydata())) == values


def test_chunk_modes_are_told_apart_by_marker(gat: Study) -> None:
    assert gat.variants == ("chunks",)
    figure = drawn(graph_chunks.chunk_time(gat))
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [*LAYOUTS, "contiguous", "halo"]
    markers = {
        line.get_marker()
        for line in figure.axes[0].get_lines()
        if line.get_label() == "_pp2" and line.get_linestyle() != "None"
    }
    assert markers == {"o", "^"}
    panels = drawn(speedup.speedup(gat)).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["contiguous", "halo"]


def test_settings_read_as_words() -> None:
    assert settings_label({"chunks": "halo", "batchnorm": "deferred", "batch_size": 100.0}) == (
        "halo, batchnorm deferred, batch size 100"
    )
    assert settings_label({"chunks": "contiguous", "rebuild": "layer"}) == (
        "contiguous, rebuild layer"
    )
    assert settings_label({"save_every": None, "bucket_mib": math.nan}) == (
        "no checkpoint every, no buckets"
    )
    assert settings_label({"bucket_mib": 0.25}) == "buckets of 0.25 MiB"


def test_invalid_cells_are_in_no_study(tmp_path: Path) -> None:
    sweep = [e for e in small_sweep(1) if e.model.name == "vig"]
    broken = next(e for e in sweep if str(e.layout) == "pp2")
    story = Story(audit=(Check("labels", "invalid", "labels do not match"),))
    run = analysis.load(make_run(tmp_path / "run", sweep, stories={broken.id: [story]}))
    (study,) = find_studies(run, analysis.summarise(run))
    assert broken.id not in set(study.cells["cell"])
    assert broken.id not in set(study.steps["cell"])
    assert len(study.cells) == len(sweep) - 1


def test_files_are_png_and_pdf_and_the_same_on_any_day(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        with styled():
            figure = new_figure(COLUMN_IN, 1.5)
            figure.subplots().plot([-1, 1], [0, 1])
        files.append(save_figure(figure, tmp_path, name))
    (png, pdf), (other_png, other_pdf) = files
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert png.read_bytes() == other_png.read_bytes()
    assert pdf.read_bytes() == other_pdf.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "one.pdf", "one.png", "two.pdf", "two.png",
    ]  # fmt: skip
    width = int.from_bytes(png.read_bytes()[16:20])
    assert width >= 200 * COLUMN_IN


def test_a_setting_that_is_none_leaves_no_accuracy_out(gat: Study) -> None:
    """Its cells were not drawn, and with a setting that is none in all of them the report died."""
    for name, count in (("save_every", [None, 2]), ("test_every", [None, None])):
        values = [count[i % 2] for i in range(len(gat.cells))]
        study = replace(gat, variants=(name,), cells=gat.cells.assign(**{name: values}))
        figure = drawn(graph_chunks.chunk_accuracy(study))
        lines = sum(len(line.get_xdata()) > 0 for one in figure.axes for line in one.get_lines())
        assert len(figure.axes) == len(set(count)) and lines >= len(figure.axes)


@pytest.mark.parametrize("count", [6, MAX_PANELS])
def test_titles_of_panels_stay_apart_however_many_settings_they_name(count: int) -> None:
    """Titles of six panels were one line each, over their neighbours; axes collapsed to nothing."""
    title = "fused, batch size 10, pipelining, batchnorm deferred, 1f1b, train steps 12, sgd"
    with styled():
        figure, axes = panel_grid(count)
        title_panels(figure, axes, [title] * count, "ViG, cifar10")
        for one in axes:
            one.set_xlabel("micro-batches a mini-batch")
        figure.draw_without_rendering()
        boxes = [one.get_tightbbox() for one in axes]
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert all(box.x0 >= 0.0 and box.x1 <= figure.bbox.width for box in boxes)
    assert all(one.bbox.height > 0.8 * figure.dpi for one in axes)


def test_the_lowest_panel_of_each_column_has_numbers_at_its_axis() -> None:
    with styled():
        figure, axes = panel_grid(5, sharex=True)
        figure.draw_without_rendering()
        labelled = [any(label.get_visible() for label in one.get_xticklabels()) for one in axes]
    assert labelled == [False, False, True, True, True]


def test_a_figure_says_how_many_settings_have_no_panel() -> None:
    titles = [f"setting {number}" for number in range(MAX_PANELS + 2)]
    with styled():
        figure, axes = panel_grid(len(titles))
        title_panels(figure, axes, titles, "GAT, cora")
    assert len(axes) == MAX_PANELS
    assert figure.get_suptitle() == "GAT, cora (the first 12 of 14 settings)"


def test_no_interval_of_an_efficiency_ends_outside_the_axes(vig: Study) -> None:
    wide = vig.summary.assign(efficiency=0.62, efficiency_low=0.41, efficiency_high=1.3)
    figure = drawn(speedup.efficiency(replace(vig, summary=wide)))
    for low, high in (axes.get_ylim() for axes in figure.axes):
        assert 0.3 <= low < 0.41
        assert 1.3 < high < 1.4


def test_a_speedup_is_not_drawn_where_nothing_stands_beside_the_baseline(vig: Study) -> None:
    rows = vig.summary
    alone = rows[(rows["layout"] == "seq") & (rows["microbatches"] == 1)]
    assert "nothing beside it" in str(speedup.speedup(replace(vig, summary=alone)))


def test_what_cannot_be_drawn_is_named_with_its_reason(
    run: Run, summary: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        catalog, "save_figure", lambda _, folder, name, origin: (folder / name, folder / name)
    )
    made = make_figures(run, summary, tmp_path, PublishedPoints())
    assert [name for name, _ in made.left_out] == ["timeline"]
    studies = find_studies(run, summary)
    # Those of frameworks need two of them, those of sampling sampled cells.
    kinds = {kind.name for kind in FIGURE_KINDS if any(map(kind.drawn_of, studies))}
    assert {kind.name for kind in FIGURE_KINDS} - kinds == {
        "framework-time", "framework-accuracy", "step-parts", "epoch-time", "epoch-speedup",
    }  # fmt: skip
    assert {one.kind for one in made.drawn} == kinds
    assert len(made.drawn) == 2 * len(kinds) - 3
    assert not any("Crosses" in one.picture.caption for one in made.drawn)

    lonely = run.cells["layout"] == "pp4"
    part = replace(run, cells=run.cells[lonely])
    only = summary[summary["layout"] == "pp4"].assign(speedup=None)
    made = make_figures(part, only, tmp_path)
    reasons = dict(made.left_out)
    assert reasons["ViG, synthetic-cifar10: speedup"] == ("no valid baseline to compare with")
    assert reasons["GAT, cora: loss of data-parallel copies"] == (
        "no sequential run beside a data-parallel one"
    )
