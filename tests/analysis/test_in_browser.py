"""A report in a real browser: it fits a screen, a phone and paper, and its tables sort."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from analysis.report.report import write_report
from gnnhpc.records.schema import Check
from tests.tools.browser import find_chromium, look_at, run_chromium
from tests.tools.make_run import Story, make_run, small_sweep

pytestmark = pytest.mark.slow

SCREEN, PHONE = 1280, 390
PAPER = 960
"""CSS pixels of a landscape page between its margins, of Letter, which is narrower than A4."""

_OVERFLOW = """
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  const wide = [];
  if (document.documentElement.scrollWidth > innerWidth) {
    wide.push(`page ${document.documentElement.scrollWidth} of ${innerWidth}`);
  }
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) {
      wide.push(`${box.ariaLabel}: ${box.scrollWidth} of ${box.clientWidth}`);
    }
  }
"""
_SORT = """
  const table = document.querySelector(".beside table");
  const column = [...table.tHead.rows[0].cells].findIndex((th) => th.innerText.includes("time"));
  const keys = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[column].dataset.key));
  const button = table.tHead.rows[0].cells[column].querySelector("button");
  const shown = button.getBoundingClientRect().width > 0;
  const given = keys();
  button.click();
  const up = keys();
  button.click();
  return { wide, shown, given, up, down: keys() };
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two studies with intervals, variants, long sentences and cells of each fate."""
    find_chromium()
    root = tmp_path_factory.mktemp("browser") / "run"
    sweep = small_sweep(3, 8, 2, spans=True)
    sweep += [e for e in small_sweep(1, 8, 2, chunks="contiguous") if e.model.name == "gat"]
    long = Check("labels", "invalid", "rank 1 of node2: " + "3 labels of a mini-batch differ, " * 9)
    noisy = Check("noisy", "suspect", "rank 0: 12.0% stolen by the host")
    stories = {
        sweep[3].id: [Story(audit=(long,))],
        sweep[4].id: [Story(audit=(noisy,))],
        sweep[5].id: [Story(status="failed", stop_at=3)],
    }
    return write_report([make_run(root, sweep, stories=stories)])[1] / "report.html"


@pytest.mark.parametrize("width", [SCREEN, PHONE])
def test_a_page_fits_and_its_tables_sort(page: Path, width: int, tmp_path: Path) -> None:
    found, errors = look_at(page, width, _OVERFLOW + _SORT, tmp_path)
    assert errors == []
    assert found["wide"] == []
    assert found["shown"]
    assert found["given"] != found["up"] == sorted(found["given"])
    assert found["down"] == sorted(found["given"], reverse=True)


def test_what_is_folded_is_printed(page: Path, tmp_path: Path) -> None:
    script = """
      const open = () => [...document.querySelectorAll("details")].map((one) => one.open);
      const before = open();
      dispatchEvent(new Event("beforeprint"));
      return { before, printed: open() };
    """
    found, errors = look_at(page, SCREEN, script, tmp_path)
    assert errors == []
    assert not any(found["before"]) and found["printed"] and all(found["printed"])
    pdf = tmp_path / "report.pdf"
    run_chromium(f"--print-to-pdf={pdf}", page.as_uri(), folder=tmp_path)
    assert pdf.read_bytes().startswith(b"%PDF")
    reader = shutil.which("pdftotext")
    if reader is not None:
        text = subprocess.run([reader, pdf, "-"], capture_output=True, text=True, check=True).stdout
        assert "Made CPU" in text
        assert "python -m jobs submit" in text
