"""A figure in a paper can be traced, and remade alone at the width of a column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

import analysis
from analysis.cli import main
from analysis.figures import speedup
from analysis.figures.one_figure import parse_width
from analysis.figures.origin import origin_of
from analysis.figures.panels import panel_grid
from analysis.figures.studies import find_studies
from analysis.figures.style import at_width, styled
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from tests.tools.make_run import make_run, small_sweep

MM = 72 / 25.4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sweep = [e for e in small_sweep(2, spans=True) if e.model.name == "vig"]
    return make_run(tmp_path_factory.mktemp("runs") / "paper run", sweep)


def cells_of(root: Path) -> list[str]:
    run = analysis.load_run(root)
    (study,) = find_studies(run, analysis.summarize(run).table)
    return [str(cell) for cell in study.cells["cell"]]


def test_a_figure_over_another_baseline_says_so_and_is_remade_over_it(tmp_path: Path) -> None:
    run = analysis.load_run(make_run(tmp_path / "r", small_sweep(2)), separate=True)
    over_pp2 = analysis.summarize(run, "pp2:5").table
    (study,) = [one for one in find_studies(run, over_pp2) if one.model == "vig"]
    figure = speedup.speedup(study)
    assert not isinstance(figure, str)
    assert figure.axes[0].get_ylabel() == "speedup over pp2 m5 (ratio)"
    told = origin_of(run, [], "speedup", study.baseline, "84mm").remade_by
    assert (
        told == "remade by: gnnhpc report r --only speedup --baseline pp2:5 --separate --width 84mm"
    )


def made(capsys: pytest.CaptureFixture[str]) -> list[Path]:
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("figure: ") for line in lines)
    return [Path(line.removeprefix("figure: ")) for line in lines]


def test_a_figure_is_remade_at_a_columns_width_and_says_where_it_is_from(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(root), "--only", "speedup", "--format", "pdf", "--width", "84mm"]
    assert main(arguments) == 0
    (pdf,) = made(capsys)
    assert pdf == root / "report" / "only" / "speedup-vig-synthetic-cifar10-84mm.pdf"
    content = pdf.read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", content)
    assert box is not None
    assert float(box[1]) == pytest.approx(84 * MM, rel=1e-6)
    told = content.decode("latin-1")
    assert f"/Keywords ({' '.join(cells_of(root))})" in told
    command = "gnnhpc report paper run --only speedup-vig-synthetic-cifar10 --width 84mm"
    assert (
        "/Subject (run paper run; code commit unknown, digest 0123456789abcdef; "
        f"remade by: {command})" in told
    )
    assert "CreationDate" not in told


def test_a_figure_of_a_damaged_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a paper's figure lacks a repeat, and nobody knows."""
    cells = [e for e in small_sweep(3) if e.model.name == "vig"]
    damaged = make_run(tmp_path / "run", cells)
    records = RunPaths(damaged).cell(cells[0].id).attempt(1).records(0)
    records.write_text(records.read_text()[:-200])
    assert main(["report", str(damaged), "--only", "speedup", "--format", "png"]) == 1
    output = capsys.readouterr()
    figure, left_out = output.out.splitlines()
    assert figure.startswith("figure: ")
    assert left_out.startswith(f"1 of {len(cells)} cells left out")
    assert output.err.startswith(f"{cells[0].id}: ")
    assert records.name in output.err


def test_a_png_carries_the_same_as_text(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = next(name for name in cells_of(root) if "dp2-pp2" in name)
    only = f"timeline-{cell[:-4]}"
    assert main(["report", str(root), "--only", only, "--out", str(tmp_path)]) == 0
    png, pdf = made(capsys)
    assert (png.suffix, pdf.suffix) == (".png", ".pdf")
    with Image.open(png) as picture:
        told = picture.text  # type: ignore[attr-defined]
    assert told == {
        "Title": f"timeline-{cell}",
        "Run": "paper run",
        "Code": "commit unknown, digest 0123456789abcdef",
        "Cells": cell,
        "Comment": f"remade by: gnnhpc report paper run --only timeline-{cell}",
    }


@pytest.mark.quick("loss", "speedup")
@pytest.mark.parametrize("kind", ["speedup", "step-times", "loss", "timeline"])
def test_at_a_columns_width_nothing_is_cut_off(root: Path, tmp_path: Path, kind: str) -> None:
    """A border of a few pixels stays white."""
    arguments = ["report", str(root), "--only", kind, "--width", "84mm", "--format", "png"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    for path in tmp_path.iterdir():
        with Image.open(path) as picture:
            grey = picture.convert("L")
        assert grey.width == pytest.approx(84 / 25.4 * 220, abs=1)
        edges = [
            grey.crop((0, 0, 2, grey.height)),
            grey.crop((grey.width - 2, 0, grey.width, grey.height)),
        ]
        assert all(edge.getextrema() == (255, 255) for edge in edges), path.name


def test_panels_stand_below_one_another_in_a_column_and_beside_one_another_in_two() -> None:
    columns = []
    for width in (84 / 25.4, None):
        with styled(), at_width(width):
            _, axes = panel_grid(3)
        columns.append(len({round(one.get_position().x0, 3) for one in axes}))
    assert columns == [1, 3]


@pytest.mark.parametrize(
    ("text", "inches"), [("84mm", 84 / 25.4), ("8.4cm", 84 / 25.4), ("3in", 3)]
)
def test_widths(text: str, inches: float) -> None:
    assert parse_width(text) == pytest.approx(inches)


@pytest.mark.parametrize("text", ["84", "84 mm ish", "1mm", "9in9", "-84mm", "50in", ""])
def test_other_widths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="such as 84mm"):
        parse_width(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "speed"], "speedup-vig-synthetic-cifar10"),
        (["--only", "timeline-nothing"], "nothing"),
        (["--only", "speedup", "--width", "84"], "--width"),
        (["--only", "speedup", "--format", "svg"], "png or pdf"),
        (["--only", "speedup", "--out", "/proc/nowhere"], "--out"),
        (["--only", "chunk-loss"], "--only"),
        (["--width", "84mm"], "with --only FIGURE"),
        (["--format", "pdf"], "with --only FIGURE"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["report", str(root), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert says in captured.err
