"""Opens a page in headless Chromium at a width, and returns what a script finds there."""

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

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "no Chromium: apt-get install chromium, or set GNNHPC_CHROMIUM to one"

_LISTEN = """<script>
"use strict";
window.errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
</script>"""
_TELL = """<script>
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


def find_chromium() -> str:
    """Path of a Chromium; skips the test where there is none, unless it must be there."""
    named = [os.environ.get("GNNHPC_CHROMIUM"), *map(shutil.which, NAMES)]
    found = next((path for path in named if path), None)
    if found is None:
        if os.environ.get("GNNHPC_REQUIRE_BROWSER"):
            pytest.fail(HOW)
        pytest.skip(HOW)
    return found


def look_at(page: Path, width: int, script: str, folder: Path) -> tuple[Any, list[str]]:
    """What `script`, the body of a function, returns in `page` at `width`, and script errors.

    The page is in a frame, which may be narrower than any window of a browser.
    """
    text = page.read_text(encoding="utf-8")
    reported = text.replace("<head>", f"<head>{_LISTEN}", 1)
    reported = reported.replace("</body>", _TELL.replace("SCRIPT", script) + "</body>", 1)
    assert reported.count("<script>") == text.count("<script>") + 2
    copy, frame = folder / f"page-{width}.html", folder / f"frame-{width}.html"
    copy.write_text(reported, encoding="utf-8")
    outside = _FRAME.replace("PAGE", copy.as_uri()).replace("WIDTH", str(width))
    frame.write_text(outside, encoding="utf-8")
    output = run_chromium("--window-size=1600,1000", "--dump-dom", frame.as_uri(), folder=folder)
    found = re.search(r'<pre id="reported">(.+?)</pre>', output, re.DOTALL)
    assert found, "the page reported nothing: its script did not end"
    answer = json.loads(html.unescape(found[1]))
    return answer["found"], answer["errors"]


def run_chromium(*arguments: str, folder: Path) -> str:
    """Standard output of one headless Chromium with a profile of its own in `folder`."""
    command = [
        find_chromium(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
        # A clock of its own: the output is taken when nothing is left to do, however slow.
        "--virtual-time-budget=20000",
        *arguments,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return ended.stdout
