"""Pages as one HTML file with styles, script and pictures in it."""

from __future__ import annotations

import base64
import re
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup, escape

from analysis.render.document import Document


def document_to_html(document: Document) -> str:
    """The HTML text of a page; the template escapes all values."""
    import jinja2

    templates = files("analysis") / "templates"

    def load(name: str) -> str | None:
        source = templates / name
        return source.read_text(encoding="utf-8") if source.is_file() else None

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["data_uri"] = data_uri
    environment.filters["with_code"] = with_code
    environment.tests["block"] = lambda block, name: type(block).__name__ == name
    return environment.get_template("report.html.j2").render(document=document)


def with_code(text: str) -> Markup:
    """The text escaped, with what is between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def data_uri(png: Path) -> str:
    """A PNG file as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")
