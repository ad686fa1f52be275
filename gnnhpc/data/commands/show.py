"""What the commands of `gnnhpc data` print, and what their arguments mean."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import input_error
from gnnhpc.data.commands.check import where_it_lies
from gnnhpc.data.commands.get import Starting
from gnnhpc.data.fetch.download import Progress
from gnnhpc.data.files import Download
from gnnhpc.data.own_graph import OwnGraph
from gnnhpc.data.published import PUBLISHED
from gnnhpc.data.registry import DATA, allowed_data, data_class
from gnnhpc.data.settings import Data


def named_data(name: str, *, own: bool = False) -> Data:
    """The data set of this name at its defaults; with `own`, a path ending in .npz is a graph.

    Raises InputError for any other name.
    """
    if own and name.endswith(".npz"):
        return OwnGraph(path=name).planned(Path.cwd())
    found = data_class(name)
    if found is None:
        raise InputError("data", None, repr(name), allowed_data())
    if found is OwnGraph:
        raise InputError("data", None, repr(name), "the path of an .npz file, to check it")
    try:
        return found.model_validate({"name": name})
    except ValidationError as error:
        raise input_error(error, "data") from None


def listing(root: Path | None) -> Iterator[str]:
    """A line a data set, in columns."""
    rows = [("name", "kind", "sizes", f"where (data root {root or 'none'})")]
    rows += [_row(name, root) for name in DATA]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "  ".join((*cells, row[3]))


def _row(name: str, root: Path | None) -> tuple[str, str, str, str]:
    if name in PUBLISHED and PUBLISHED[name].refused:
        row = PUBLISHED[name]
        return name, "graph", _sizes(row.facts), f"not usable: {row.refused}"
    if DATA[name] is OwnGraph:
        return name, "graph", "those of the file", "your own: data: {name: file, path: graph.npz}"
    data = named_data(name)
    facts = data.facts()
    return name, facts.kind, _sizes(facts), where_it_lies(data, root)


def _sizes(facts: Facts) -> str:
    if facts.kind == "images":
        size = facts.image_size
        return f"{facts.train:,} + {facts.test:,} of {size} x {size}, {facts.classes} classes"
    graphs = f"{facts.graphs:,} graphs, " if facts.kind == "graphs" else ""
    return (
        f"{graphs}{facts.nodes:,} nodes, {facts.edges:,} edges, {facts.features:,} features, "
        f"{facts.classes} classes"
    )


@contextlib.contextmanager
def showing() -> Iterator[Starting]:
    """A bar an address on a terminal; elsewhere a line when it is asked."""
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:

        def starting(wanted: Download) -> Progress:
            task = bars.add_task(wanted.url, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield starting


def _line(wanted: Download) -> None:
    size = f" ({wanted.megabytes:,} MB)" if wanted.megabytes else ""
    print(f"fetching {wanted.url}{size}", file=sys.stderr, flush=True)
