"""Pages that are generated from the code: mkdocs calls this file.

Settings, records and results are documented by the docstrings of their fields, commands by their
help texts, and packages by their README pages.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.slurm.read_site_file import site_keys
from jobs.sweep.sweep_schema import markdown_table, settings_table, sweep_keys

ROOT = Path(__file__).resolve().parents[1]
READMES = {
    "jobs": "jobs",
    "models": "gnnhpc/models",
    "engines": "gnnhpc/engines",
    "batches": "gnnhpc/batches",
    "validation": "gnnhpc/validation",
    "analysis": "analysis",
    "benchmarks": "benchmarks",
}
"""Page below `packages/` -> folder of its README.md."""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to those of the folder."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to READMEs, which serve in a checkout, to their pages in the site."""
    for name, folder in READMES.items():
        markdown = markdown.replace(f"](../../{folder}/README.md", f"](../packages/{name}.md")
    return markdown


def pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    reference = {
        "sweep": sweep_keys(),
        "site": site_keys(),
        "models-and-data": _models_and_data(),
        "commands": _commands(),
        "summary-csv": _summary(),
        "run-folder": _run_folder(),
    }
    readmes = {name: (ROOT / folder / "README.md") for name, folder in READMES.items()}
    return {
        **{f"reference/{name}.md": "\n\n".join(blocks) for name, blocks in reference.items()},
        **{f"packages/{name}.md": _without_links(path) for name, path in readmes.items()},
    }


def _models_and_data() -> Iterator[str]:
    from gnnhpc.data.registry import DATA
    from gnnhpc.models.model_registry import BUILT_IN, model_class

    names: dict[Any, list[str]] = {model_class(name): [name] for name in sorted(BUILT_IN)}
    for name, cls in sorted(DATA.items()):
        names.setdefault(cls, []).append(name)
    yield "# Models and data"
    yield "`gnnhpc data list` says which data are on this machine."
    for cls, its_names in names.items():
        yield f"## {', '.join(its_names)}"
        yield inspect.getdoc(cls) or ""
        yield settings_table(cls, without=("name",))


def _commands() -> Iterator[str]:
    from gnnhpc.console import COMMANDS, load

    yield "# Commands"
    yield "`gnnhpc COMMAND --help` prints the same in a terminal."
    for name in COMMANDS:
        yield from _command(f"gnnhpc {name}", load(name), "##")


def _command(name: str, command: Any, level: str) -> Iterator[str]:
    yield f"{level} {name}"
    yield inspect.cleandoc(command.help or "")
    yield " ".join((command.epilog or "").split())
    options = [each for each in command.params if "--help" not in each.opts]
    rows = [
        (f"`{', '.join(each.opts)}`", " ".join((getattr(each, "help", None) or "").split()))
        for each in options
    ]
    yield markdown_table(("option", "meaning"), rows) if rows else ""
    for inner, each in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inner}", each, f"{level}#")


def _summary() -> Iterator[str]:
    from analysis.summary.summary_csv_columns import COLUMN_MEANINGS

    yield "# summary.csv"
    yield (
        "One row a model, data, layout, micro-batches, other settings that vary, and phase. The "
        "columns below come first, in this order. Settings in which cells differ follow, then "
        "losses and metrics. An empty value is one that was not measured."
    )
    yield markdown_table(("column", "meaning"), [(f"`{k}`", v) for k, v in COLUMN_MEANINGS.items()])


def _run_folder() -> Iterator[str]:
    from gnnhpc.records import result_file, schema

    yield "# Run folder"
    yield (
        "`manifest.jsonl` has one cell a line and is never rewritten. `code/` is what the run was "
        "planned with. Every try at a cell is a new attempt: `cells/<cell id>/attempt-<n>/` has "
        "`result.json` and, of each rank, its records (`rank-0000.jsonl`) and its log."
    )
    for title, cls in {
        "result.json": result_file.Result,
        "Checks": schema.Check,
        "Failure": schema.Failure,
        "Records: header": schema.Header,
        "Records: steps": schema.StepRecord,
        "Records: spans": schema.SpanRecord,
        "Records: events": schema.EventRecord,
    }.items():
        yield f"## {title}"
        yield inspect.getdoc(cls) or ""
        meanings = dict(_field_docstrings(cls))
        names = {each.name: each.type for each in dataclasses.fields(cls)}
        rows = [(f"`{name}`", f"`{kind}`", meanings.get(name, "")) for name, kind in names.items()]
        yield markdown_table(("field", "type", "meaning"), rows)


def _field_docstrings(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """A dataclass's fields, each with the string that follows it in the source."""
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            yield ast.unparse(field.target), " ".join(str(text.value.value).split())


def _without_links(readme: Path) -> str:
    """Its text; of links to other files of the checkout only the label."""
    return re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", readme.read_text(encoding="utf-8"))
