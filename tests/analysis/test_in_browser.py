"""A report in a headless Chromium: it fits a screen, a phone and paper, and its tables sort."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from analysis.report.report import write_report
from gnnhpc.records.schema import Check
from tests.tools.make_run import Story, make_run, small_sweep

pytestmark = pytest.mark.slow

SCREEN, PHONE = 1280, 390
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("GNNHPC_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
_LISTEN = """<script>
"use strict";
window.errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
</script>"""
_REPORT = """<script>
"use strict";
addEventListener("load", () => {
  let found = null;
  try { found = (() => { SCRIPT })(); } catch (error) { errors.push(String(error)); }
  parent.postMessage(JSON.stringify({ found, errors }), "*");
});
</script>"""
_FRAME = """<!DOCTYPE html><meta charset="utf-8"><title>frame</title>
<pre id="reported"></pre>
<script>
addEventListener("message", (event) => {
  document.getElementById("reported").textContent = event.data;
});
</script>
<iframe src="PAGE" style="width: WIDTHpx; height: 900px; border: 0"></iframe>"""
_FITS_AND_SORTS = """
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
  const table = document.querySelector(".beside table");
  const column = [...table.tHead.rows[0].cells].findIndex((th) => th.innerText.includes("(s)"));
  const keys = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[column].dataset.key));
  const button = table.tHead.rows[0].cells[column].querySelector("button");
  const shown = button.getBoundingClientRect().width > 0;
  const unsorted = keys();
  button.click();
  const up = keys();
  button.click();
  return { wide, shown, unsorted, up, down: keys() };
"""
_PRINTS = """
  const open = () => [...document.querySelectorAll("details")].map((one) => one.open);
  const before = open();
  dispatchEvent(new Event("beforeprint"));
  return { before, printed: open() };
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two studies with intervals, variants, long sentences and cells of each fate."""
    if CHROMIUM is None:
        words = "no Chromium: apt-get install chromium, or set GNNHPC_CHROMIUM to one"
        (pytest.fail if os.environ.get("GNNHPC_REQUIRE_BROWSER") else pytest.skip)(words)
    sweep = small_sweep(3, 8, 2, spans=True)
    sweep += [e for e in small_sweep(1, 8, 2, chunks="contiguous") if e.model.name == "gat"]
    long = Check("labels", "invalid", "rank 1 of node2: " + "3 labels of a mini-batch differ, " * 9)
    noisy = Check("noisy", "suspect", "rank 0: 12.0% stolen by the host")
    stories = {
        sweep[3].id: [Story(audit=(long,))],
        sweep[4].id: [Story(audit=(noisy,))],
        sweep[5].id: [Story(status="failed", stop_at=3)],
    }
    root = tmp_path_factory.mktemp("browser") / "run"
    return write_report([make_run(root, sweep, stories=stories)])[1] / "report.html"


def run_script(page: Path, width: int, script: str, folder: Path) -> Any:
    """What `script`, the body of a function, returns in `page` at `width`, without any error.

    The page is in a frame, which may be narrower than any window of a browser.
    """
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{_LISTEN}", 1)
    text = text.replace("</body>", _REPORT.replace("SCRIPT", script) + "</body>", 1)
    copy, frame = folder / "page.html", folder / "frame.html"
    copy.write_text(text, encoding="utf-8")
    outside = _FRAME.replace("PAGE", copy.as_uri()).replace("WIDTH", str(width))
    frame.write_text(outside, encoding="utf-8")
    output = run_chromium("--window-size=1600,1000", "--dump-dom", frame.as_uri(), folder=folder)
    found = re.search(r'<pre id="reported">(.+?)</pre>', output, re.DOTALL)
    assert found, "the page reported nothing: its script did not end"
    answer = json.loads(html.unescape(found[1]))
    assert answer["errors"] == []
    return answer["found"]


def run_chromium(*arguments: str, folder: Path) -> str:
    """Standard output of one headless Chromium with a profile of its own in `folder`."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    # A clock of its own: the output is taken when nothing is left to do, however slow.
    own = (f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000")
    command = [str(CHROMIUM), *flags, *own, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return ended.stdout


@pytest.mark.parametrize("width", [SCREEN, PHONE])
def test_a_page_fits_and_its_tables_sort(page: Path, width: int, tmp_path: Path) -> None:
    found = run_script(page, width, _FITS_AND_SORTS, tmp_path)
    assert not found["wide"], "; ".join(found["wide"])
    assert found["shown"]
    assert found["unsorted"] != found["up"] == sorted(found["unsorted"])
    assert found["down"] == sorted(found["unsorted"], reverse=True)


def test_what_is_folded_is_printed(page: Path, tmp_path: Path) -> None:
    found = run_script(page, SCREEN, _PRINTS, tmp_path)
    assert not any(found["before"]) and found["printed"] and all(found["printed"])
    pdf = tmp_path / "report.pdf"
    run_chromium(f"--print-to-pdf={pdf}", page.as_uri(), folder=tmp_path)
    assert pdf.read_bytes().startswith(b"%PDF")
