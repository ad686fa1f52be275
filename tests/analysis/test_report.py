"""Reports: verdicts first, everything inside, nothing from elsewhere, nothing of a run trusted."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.loading.run import Run
from analysis.render.document import (
    Bullets,
    Document,
    Picture,
    Section,
    Text,
    as_value,
    frame_table,
    rows_table,
)
from analysis.render.html import document_to_html
from analysis.render.markdown import document_to_markdown
from analysis.report.first_page import count_cells
from analysis.report.headline import headline_table
from analysis.report.report_pages import write_report_pages
from gnnhpc.records.schema import Check
from tests.tools.make_run import Story, make_run, small_sweep

VOID = {"meta", "img", "br", "link", "input", "hr"}
# 1x1 pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000100ffff03000006000557bfabd4000000"
    "0049454e44ae426082"
)


class Page(HTMLParser):
    """What a page holds; raises for tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "id" in given:
            self.ids.append(str(given["id"]))
        self.links += [str(given[key]) for key in ("src", "href") if key in given]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data.strip()
        if "script" not in self.open and "style" not in self.open:
            self.text.append(data)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run with one cell of each fate, and its report."""
    root = tmp_path_factory.mktemp("report") / "run"
    sweep = small_sweep(1, 8, 2)
    vig = [e for e in sweep if e.model.name == "vig"]
    gat = [e for e in small_sweep(1, 8, 2, spans=True) if e.model.name == "gat"]
    by_layout = {(str(e.layout), e.microbatches): e for e in vig}
    mismatch = Check("labels", "invalid", "3 mini-batches <b>mismatched</b> | labels")
    noisy = Check("noisy", "suspect", "rank 0: 12.0% stolen by the host")
    stories = {
        by_layout["pp2", 5].id: [Story(audit=(mismatch,))],
        by_layout["pp2", 10].id: [Story(audit=(noisy,))],
        by_layout["pp4", 5].id: [Story(status="failed", stop_at=3)],
        by_layout["pp4", 10].id: [Story(finished=False, stop_at=2)],
        by_layout["dp2-pp2", 5].id: [],
    }
    make_run(root, [*vig, *gat[1:2]], stories=stories)
    facts = {
        "version": 1, "cells": len(vig) + 1,
        "commit": "c0ffee" * 6, "command": ["python", "-m", "jobs", "submit", "<script>.yaml"],
        "host": "login1", "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    (root / "provenance.json").write_text(json.dumps(facts), encoding="utf-8")
    run = analysis.load(root)
    write_report_pages(run, root / "report")
    return run, root / "report"


@pytest.fixture(scope="module")
def page(troubled: tuple[Run, Path]) -> Page:
    return Page((troubled[1] / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def text(troubled: tuple[Run, Path]) -> str:
    return (troubled[1] / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_cell_is_counted_once(troubled: tuple[Run, Path]) -> None:
    counts = count_cells(troubled[0].cells)
    assert (counts.invalid, counts.failed, counts.missing, counts.flagged) == (1, 1, 2, 1)
    parts = (counts.clean, counts.flagged, counts.invalid, counts.failed, counts.missing)
    assert sum(parts) == counts.cells == 10
    assert counts.valid == 6


def test_the_first_page_says_what_may_be_believed(text: str) -> None:
    first = text.split("\n## ")[1]
    assert first.startswith("Verdict")
    expected = "6 of 10 cells valid, 1 of them flagged, 1 invalid, 1 failed, 2 missing."
    assert f"**Warning:** {expected}" in first
    assert "BatchNorm, mode micro" in first
    assert "synchronised over replicas" in first
    assert re.search(r"\| code \| (c0ffee){6} \|", first)
    assert "python -m jobs submit" in first
    assert "torch 2.13.0" in first
    assert "node1, node2" in first
    assert "Made CPU" in first


def test_cells_that_do_not_count_are_listed_with_their_reason(
    troubled: tuple[Run, Path], text: str
) -> None:
    listed = text.split("*Cells that are not valid, and why*")[1].split("\n\n")[1]
    rows = {line.split(" | ")[0].strip("| "): line for line in listed.splitlines()[2:]}
    invalid = troubled[0].cells[~troubled[0].cells["valid"]]
    assert set(rows) == set(invalid["cell"])
    reasons = "\n".join(rows.values())
    assert r"labels: 3 mini-batches \<b\>mismatched\</b\> \| labels" in reasons
    assert "rank 0 on node1 at train step 3: RuntimeError: planted" in reasons
    assert "no attempt" in reasons
    assert "died without a result" in reasons


def test_cells_that_do_not_count_are_in_no_table_of_times(page: Page) -> None:
    times = next(t for t in page.tables if "mean" in t[0] and "samples/s" in t[0])
    at = {name: number for number, name in enumerate(times[0])}
    empty = [row for row in times[1:] if row[at["n"]] == "0"]
    assert {(row[at["layout"]], row[at["micro-batches"]]) for row in empty} == {
        ("pp2", "5"), ("pp4", "5"), ("pp4", "10"), ("dp2-pp2", "5"),
    }  # fmt: skip
    assert all(row[at["mean"]] == "" for row in empty)


def test_the_first_screen_answers_in_a_figure_and_a_table_of_seven_columns(
    troubled: tuple[Run, Path], page: Page, text: str
) -> None:
    first = text.split("\n## ")[1]
    verdict, figure = first.index("6 of 10 cells valid"), first.index("](figures/speedup-vig")
    assert verdict < figure < first.index("*Training: seconds") < first.index("*Flags raised")
    assert first.index("*Cells that are not valid") < first.index("| command |")
    table = page.tables[0]
    assert table[0] == [
        "study", "layout", "micro-batches", "step time (s)", "speedup", "bound", "remarks",
    ]  # fmt: skip
    remarks = {(row[1], row[2]): row[6] for row in table[1:] if row[0] == "vig, synthetic-cifar10"}
    assert remarks["pp2", "5"] == "nothing that counts"
    assert remarks["pp2", "10"] == "noisy 1 of 1; one run"


def test_where_runs_tell_how_they_differ_a_number_has_its_interval_in_one_cell(
    tmp_path: Path,
) -> None:
    sweep = [e for e in small_sweep(3, 8, 2) if e.model.name == "vig"]
    run = analysis.load(make_run(tmp_path / "run", sweep))
    summary = analysis.summarise(run)
    table = headline_table(summary[summary["phase"] == "train"])
    assert table.columns == ("layout", "micro-batches", "step time (s)", "speedup", "bound")
    shown = {(row[0].text, row[1].text): row for row in table.rows}
    assert shown["seq", "1"][3].text == "1"
    interval = re.compile(r"(\d+\.\d+) \[(\d+\.\d+), (\d+\.\d+)\]")
    for row in table.rows[1:]:
        found = interval.fullmatch(row[3].text)
        assert found, row[3].text
        assert float(found[2]) <= float(found[1]) <= float(found[3])
        assert row[3].key == pytest.approx(float(found[1]), rel=0.1)


def test_flags_are_explained(page: Page) -> None:
    flags = next(t for t in page.tables if t[0][0] == "flag")
    assert [row[:3] for row in flags[1:]] == [["labels", "invalid", "1"], ["noisy", "suspect", "1"]]
    assert flags[2][3] == "rank 0: 12.0% stolen by the host"


def test_what_n_counts_is_said_whole(page: Page, text: str) -> None:
    told = (
        "n counts the mini-batches of all valid repeats, after warm-up. Those that the run's "
        "checks looked at closely are left out too, where as many others of the repeat remain."
    )
    assert told in text
    assert told in page.text


def test_the_two_medians_are_told_apart(page: Page) -> None:
    told = " ".join(page.text)
    assert "a median the mean of the runs' medians. The figure of step times marks another" in told
    assert "The median is that of the steps of all runs together; in tables it is the mean" in told


def test_nothing_is_loaded_from_elsewhere(troubled: tuple[Run, Path], page: Page) -> None:
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in page.links)
    raw = (troubled[1] / "report.html").read_text(encoding="utf-8")
    styles = raw[raw.index("<style>") : raw.index("</style>")]
    assert "url(" not in styles and "@import" not in styles
    assert "default-src 'none'" in raw
    assert not re.search(r"https?://", re.sub(r'"data:[^"]*"', "", raw))


def test_a_page_has_its_sections_and_fits_a_phone(troubled: tuple[Run, Path], page: Page) -> None:
    assert page.ids == [
        "verdict", "summary", "speed", "learning", "chunks", "tables", "corrected", "timeline",
        "statistics", "left-out",
    ]  # fmt: skip
    assert [link for link in page.links if link[0] == "#"] == [f"#{name}" for name in page.ids]
    raw = (troubled[1] / "report.html").read_text(encoding="utf-8")
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in raw
    assert raw.count('<div class="scroll"') == raw.count("<table>") == len(page.tables)


def test_what_a_run_says_is_never_markup(troubled: tuple[Run, Path], page: Page) -> None:
    raw = (troubled[1] / "report.html").read_text(encoding="utf-8")
    assert "<script>.yaml" not in raw
    assert "&lt;script&gt;.yaml" in raw
    assert raw.count("<script>") == 1
    assert "<b>" not in raw


def test_figures_and_traces_stand_in_the_folder(troubled: tuple[Run, Path], text: str) -> None:
    folder = troubled[1]
    named = re.findall(r"\((figures/[^)]+)\)", text)
    assert {Path(name).suffix for name in named} == {".png", ".pdf"}
    assert all((folder / name).is_file() for name in named)
    assert sorted(named) == sorted(f"figures/{p.name}" for p in (folder / "figures").iterdir())
    traces = list((folder / "traces").iterdir())
    assert traces
    assert all(json.loads(trace.read_text())["traceEvents"] for trace in traces)


def test_the_corrected_study_stands_beside_its_known_defects(page: Page) -> None:
    whole = " ".join(page.text)
    corrected = [t for t in page.tables if {"setting", "verdict", "published"} <= set(t[0])]
    assert len(corrected) == 4
    assert "Gradients did not cross stage boundaries" in whole
    # None are known of torchgpipe's.
    assert page.text.count("Known defects of these measurements:") == 3
    raffi = next(t for t in corrected if any("pp2, 5 micro-batches" in row for row in t))
    at = raffi[0].index("verdict")
    assert any("above the bound" in row[at] for row in raffi[1:])


def test_of_one_run_no_effect_is_told(page: Page) -> None:
    effects = next(t for t in page.tables if "effect" in t[0])
    at = effects[0].index("effect")
    assert all("one run says nothing about how runs differ" in row[at] for row in effects[1:])
    assert "nothing is said of a difference" in " ".join(page.text)


def test_a_run_without_a_valid_cell_has_a_report(tmp_path: Path) -> None:
    sweep = [e for e in small_sweep(1, 4, 2) if str(e.layout) == "pp2"]
    failed = {e.id: [Story(status="failed", stop_at=1)] for e in sweep[:2]}
    stories = failed | {e.id: [] for e in sweep[2:]}
    run = analysis.load(make_run(tmp_path / "run", sweep, stories=stories))
    page = write_report_pages(run, tmp_path / "out")
    found = Page(page.read_text(encoding="utf-8"))
    assert "0 of 4 cells valid" in " ".join(found.text)
    assert "left-out" in found.ids


def test_values_read_well() -> None:
    frame = pd.DataFrame(
        {
            "text": ["a|b", None],
            "whole": [1, 2],
            "part": [0.123456, float("nan")],
            "sure": [True, False],
            "nothing": [None, None],
        }
    )
    made = frame_table(frame, "t")
    assert made.columns == ("text", "whole", "part", "sure")
    assert [[cell.text for cell in row] for row in made.rows] == [
        ["a|b", "1", "0.1235", "yes"],
        ["", "2", "", "no"],
    ]
    assert [made.is_number(column) for column in range(4)] == [False, True, True, False]
    assert as_value(2.5).key == 2.5
    assert as_value(None).key == ""
    renamed = frame_table(frame, "t", {"whole": "n", "absent": "x"})
    assert renamed.columns == ("n",)


def test_both_renderings_escape(tmp_path: Path) -> None:
    png, pdf = tmp_path / "figures" / "a.png", tmp_path / "figures" / "a.pdf"
    png.parent.mkdir()
    png.write_bytes(PNG)
    evil = "<img src=x onerror=alert(1)> [link](http://x) | *`"
    document = Document(
        evil,
        evil,
        (
            Section(
                "one",
                evil,
                (
                    Text(evil, "warning"),
                    Bullets((evil,)),
                    rows_table(evil, (evil, "n"), [(evil, 1)]),
                    Picture(evil, evil, png, pdf, wide=True),
                ),
            ),
        ),
        tmp_path,
    )
    page = Page(document_to_html(document))
    assert page.links[-1].startswith("data:image/png;base64,iVBOR")
    assert all(link.startswith(("data:", "#")) for link in page.links)
    written = document_to_markdown(document)
    assert "<img" not in written.replace(r"\<img", "")
    assert "](http" not in written.replace(r"\](http", "")
    assert "(figures/a.png)" in written
    rows = [line for line in written.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
