"""Figures: what they show and say, where they come from, and what never reaches them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import analysis
from analysis.cli import main
from analysis.figures import draw_figures
from analysis.figures.colours_and_style import new_figure, styled
from analysis.figures.draw_figures import FIGURES, FigureKind
from analysis.figures.model_on_data import ModelOnData, find_models_on_data
from analysis.figures.timeline import draw_timeline
from gnnhpc.experiment.experiment import Experiment
from tests.analysis.conftest import GOLDEN, experiments_of
from tests.tools.made_steps import Machine
from tests.tools.make_run import make_run, small_sweep

MM = 72 / 25.4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sweep = [e for e in small_sweep(2, spans=True) if e.model.name == "vig"]
    return make_run(tmp_path_factory.mktemp("runs") / "paper run", sweep)


def group_of(folder: Path) -> ModelOnData:
    return find_models_on_data(analysis.summarize(analysis.load_run(folder)))[-1]


def drawn(name: str, group: ModelOnData) -> Any:
    kind = next(one for one in FIGURES if one.name == name)
    figure = kind.draw(group)
    assert not isinstance(figure, str), figure
    return figure


@pytest.mark.parametrize("name", list(GOLDEN))
def test_every_axis_has_a_label_and_numbers_a_unit(folders: dict[str, Path], name: str) -> None:
    group = group_of(folders[name])
    for kind in FIGURES:
        figure = kind.draw(group) if kind.applies(group) else "not of this run"
        if isinstance(figure, str):
            continue
        axes = [one for one in figure.axes if one.get_visible()]
        assert all(one.get_xlabel() for one in axes), kind.name
        assert any(one.get_ylabel() or one.get_yticklabels() for one in axes), kind.name


def test_adding_a_figure_is_one_function_and_one_row(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples(group: ModelOnData) -> Any:
        """Samples a second."""
        with styled():
            figure = new_figure(3.3, 2)
            figure.subplots().bar(group.training["layout"], group.training["samples_per_s"])
        return figure

    row = FigureKind(samples, "speed")
    monkeypatch.setattr(draw_figures, "FIGURES", (*FIGURES, row))
    assert main(["report", str(folders["sampled"]), "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("figures/samples-*.png"))) == 1
    assert "Samples a second." in (tmp_path / "report.md").read_text()


def test_with_one_number_of_microbatches_the_axis_is_the_layout(tmp_path: Path) -> None:
    """And two runs that differ much have an interval of many times their speedup: an arrow."""
    changes: list[dict[str, Any]] = [{}, {"layout": "pp2", "microbatches": 5}]
    experiments = [
        Experiment.model_validate(GOLDEN["images"][0] | change | {"repeat": repeat})
        for change in changes
        for repeat in (0, 1)
    ]
    machine = Machine(runs_differ=0.8)
    group = group_of(make_run(tmp_path / "run", experiments, machine=machine))
    (axes,) = drawn("speedup", group).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["seq\nm 1", "pp2\nm 5"]
    assert axes.get_xlabel() == "layout (m: micro-batches)"
    most = float(group.training[["speedup", "bound"]].max().max())
    assert float(group.training["speedup_high"].max()) > 3 * most
    assert axes.get_ylim()[1] <= 1.7 * most
    assert "^" in {line.get_marker() for line in axes.lines}


def test_every_part_of_a_waterfall_has_its_number(root: Path) -> None:
    for axes in drawn("waterfall", group_of(root)).axes:
        if axes.get_visible():
            texts = [text.get_text() for text in axes.texts]
            assert len(texts) == len(axes.get_yticks()) == 10
            assert all(re.match(r" -?[0-9.e-]+$| in contention$", text) for text in texts)


@pytest.mark.parametrize(
    ("kind", "layouts"), [("strong-scaling", {"pp2", "pp4"}), ("weak-scaling", {"dp2-pp2"})]
)
def test_scaling_has_speedup_and_efficiency_against_ranks(
    root: Path, kind: str, layouts: set[str]
) -> None:
    """A mini-batch is of one replica: pipelines share the baseline's, replicas have one each."""
    group = group_of(root)
    speedup, efficiency = drawn(kind, group).axes
    shown = {str(line.get_label()): line for line in efficiency.lines}
    assert {name for name in shown if name[0] != "_"} == layouts | {"seq", "ideal"}
    assert speedup.get_xlabel() == efficiency.get_xlabel() == "ranks"
    best = group.training.groupby("layout")["speedup"].max()
    for name in layouts:
        ranks = 2 if name == "pp2" else 4
        assert shown[name].get_ydata()[0] == pytest.approx(best[name] / ranks)


def test_learning_is_drawn_against_the_seconds_of_steps(root: Path) -> None:
    group = group_of(root)
    (axes,) = drawn("learning-over-time", group).axes
    assert axes.get_xlabel() == "time in training steps (s)"
    assert axes.get_ylabel().endswith("accuracy")
    curve = {line.get_label(): line for line in axes.lines}["seq"].get_xdata()
    steps = group.steps[(group.steps["layout"] == "seq") & (group.steps["phase"] == "train")]
    totals = steps.groupby(["microbatches", "cell"], observed=True)["step_s"].sum()
    assert curve[-1] == pytest.approx(totals.groupby("microbatches").mean().min())


def test_implementations_have_panels_of_their_own(tmp_path: Path) -> None:
    sweep = [e for e in experiments_of("chunks", 2) if e.layout.world_size * e.microbatches == 1]
    group = group_of(make_run(tmp_path / "run", sweep))
    alone = {kind.name: kind.draw(group) for kind in FIGURES if kind.applies(group)}
    assert [one.get_title(loc="left") for one in drawn("memory", group).axes] == ["ours", "PyG"]
    assert alone["bubble"] == "one rank alone, which waits for nobody"
    assert alone["chunk-time"] == "every cell computes the whole graph in one chunk"


def test_a_figure_is_remade_at_a_columns_width_and_says_where_it_is_from(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(root), "--only", "speedup", "--width", "84mm"]
    assert main(arguments) == 0
    _, line = capsys.readouterr().out.splitlines()
    pdf = Path(line.removeprefix("figure: "))
    assert pdf == root / "report" / "only" / "speedup-vig-synthetic-cifar10-84mm.pdf"
    content = pdf.read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", content)
    assert box is not None
    assert float(box[1]) == pytest.approx(84 * MM, rel=1e-6)
    text = content.decode("latin-1")
    cells = " ".join(map(str, group_of(root).cells["cell"]))
    assert f"/Keywords ({cells})" in text
    assert "/Subject (run paper run; code commit unknown, digest 0123456789abcdef; " in text
    command = "gnnhpc report paper run --only speedup-vig-synthetic-cifar10 --width 84mm"
    assert f"remade by: {command})" in text
    assert "CreationDate" not in text


def test_ranks_of_a_host_have_one_clock_in_a_timeline(root: Path) -> None:
    """A rank that leaves the barrier 5 ms after the others begins 5 ms later."""
    run = analysis.load_run(root)
    cell = str(run.cells.loc[run.cells["layout"] == "pp2", "cell"].iloc[0])

    def first_bar_ms(rank: int) -> float:
        figure = draw_timeline(run, cell)
        assert not isinstance(figure, str), figure
        rows = [bars for bars in figure.axes[0].collections if bars.get_label() == "forward"]
        return float(rows[rank].get_paths()[0].vertices[:, 0].min())

    run.ranks["host"] = run.ranks["host"].iloc[0]
    before = [first_bar_ms(rank) for rank in (0, 1)]
    run.ranks.loc[run.ranks["rank"] == 1, "start_s"] += 0.005
    assert [first_bar_ms(rank) for rank in (0, 1)] == pytest.approx([before[0], before[1] + 5])


@pytest.mark.quick("loss", "speedup")
@pytest.mark.parametrize("kind", ["speedup", "step-times", "loss", "timeline", "memory"])
def test_at_a_columns_width_nothing_is_cut_off(root: Path, tmp_path: Path, kind: str) -> None:
    """A border of a few pixels stays white."""
    arguments = ["report", str(root), "--only", kind, "--width", "84mm"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as picture:
            grey = picture.convert("L")
        assert grey.width == pytest.approx(84 / 25.4 * 220, abs=1)
        for left in (0, grey.width - 2):
            edge = grey.crop((left, 0, left + 2, grey.height))
            assert edge.getextrema() == (255, 255), path.name


def test_a_figure_that_fails_is_a_line_of_the_report(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("analysis.figures.step_time.np.quantile", fail)
    assert main(["report", str(folders["sampled"]), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.md").read_text()
    assert "drawing it failed: ZeroDivisionError: division by zero" in page
    assert list(tmp_path.glob("figures/epoch-time-*.png"))


SETTINGS = "backend: nonsense\nfont.size: 30\nlines.linewidth: 9\naxes.facecolor: red\n"


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "no_such_one"])
def test_a_users_matplotlib_settings_change_nothing(
    folders: dict[str, Path], tmp_path: Path, backend: str
) -> None:
    """Neither a notebook's MPLBACKEND nor a matplotlibrc."""
    (tmp_path / "matplotlibrc").write_text(SETTINGS)
    source = str(Path(analysis.__file__).parents[1])
    command = [sys.executable, "-m", "analysis", "report", str(folders["chunks"])]
    pictures = []
    for name, more in (("plain", {}), ("styled", {"MPLBACKEND": backend})):
        subprocess.run(
            [*command, "--only", "speedup", "--out", str(tmp_path / name)], check=True,
            env={**os.environ, "PYTHONPATH": source, **more}, cwd=tmp_path if more else None,
            capture_output=True,
        )  # fmt: skip
        pictures.append(next((tmp_path / name).glob("*.png")).read_bytes())
    assert pictures[0] == pictures[1]
