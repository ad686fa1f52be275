"""What of a data set is here, and whether it is whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.data.commands.checksums import NAME, changed_files, read_checksums
from gnnhpc.data.files import Files
from gnnhpc.data.own_graph import OwnGraph
from gnnhpc.data.settings import Data

_EDGES_MAY_LACK = 0.2


@dataclass(frozen=True)
class Finding:
    """What a look at a data set gave."""

    whole: bool
    text: str


def where_it_lies(data: Data, root: Path | None) -> str:
    """In a few words, without opening a file."""
    files = data.files(root)
    if files is None:
        return "made up"
    missing = files.names if root is None else files.missing(root)
    if root is None or len(missing) == len(files.names):
        return "not here"
    folder = files.directory(root)
    if missing:
        return f"{folder}, without {len(missing)} of {len(files.names)} files"
    return str(folder)


def check_data_set(data: Data, root: Path | None) -> Finding:
    """Files there, as they were downloaded, readable, and of the sizes that are known.

    Graphs and images are read as a run would read them.
    """
    files = data.files(root)
    if files is not None:
        problem = _file_problem(data, files, root)
        if problem:
            return Finding(False, problem)
    try:
        return _read(data, root)
    except InputError as error:
        return Finding(False, f"damaged: {error}")


def _file_problem(data: Data, files: Files, root: Path | None) -> str | None:
    missing = files.names if root is None else files.missing(root)
    if root is None or len(missing) == len(files.names):
        return f"not here; `gnnhpc data get {data.name}` gets it"
    folder = files.directory(root)
    if missing:
        here = len(files.names) - len(missing)
        lacking = f"a part: {here} of {len(files.names)} files in {folder}, "
        return f"{lacking}without {', '.join(missing)}; `gnnhpc data get {data.name}` gets the rest"
    changed = changed_files(folder)
    if changed:
        return f"damaged: {', '.join(changed)} in {folder} differs from {NAME} beside it"
    return None


def _read(data: Data, root: Path | None) -> Finding:
    facts = data.facts()
    found = _image_counts(data, root) if facts.kind == "images" else _graph_sizes(data, root)
    wrong = [
        f"{found[key]:,} {key}, not {wanted:,}"
        for key, wanted in _expected(data, facts).items()
        if not _fits(key, found[key], wanted)
    ]
    if wrong:
        return Finding(False, f"of another size: {', '.join(wrong)}")
    sizes = ", ".join(f"{count:,} {key}" for key, count in found.items())
    return Finding(True, f"whole: {sizes}{_recorded(data, root)}")


def _recorded(data: Data, root: Path | None) -> str:
    files = data.files(root)
    if files is None or root is None:
        return ""
    known = read_checksums(files.directory(root))
    if known.keys() >= set(files.names):
        return f"; files as recorded in {NAME}"
    return "; no record of its checksums"


def _expected(data: Data, facts: Facts) -> dict[str, int]:
    if facts.kind == "images":
        return {"train": facts.train, "test": facts.test}
    # A user's own file may hold any number of duplicates and self-loops; its digest is checked.
    if facts.kind == "graphs":
        keys: tuple[str, ...] = ("graphs", "nodes", "edges", "features")
    else:
        keys = (
            ("nodes", "features") if isinstance(data, OwnGraph) else ("nodes", "edges", "features")
        )
    return {key: getattr(facts, key) for key in keys}


def _fits(key: str, found: int, wanted: int) -> bool:
    """Edges are counted without self-loops and duplicates here, which some counts include."""
    lack = _EDGES_MAY_LACK * wanted if key == "edges" else 0
    return wanted - lack <= found <= wanted


def _image_counts(data: Data, root: Path | None) -> dict[str, int]:
    from gnnhpc.data.images import Split, load_images

    splits: tuple[Split, ...] = ("train", "test")
    return {split: len(load_images(data, root, split)) for split in splits}


def _graph_sizes(data: Data, root: Path | None) -> dict[str, int]:
    if data.facts().kind == "graphs":
        from gnnhpc.data.load_graph_sets import load_graph_set

        graphs = load_graph_set(data, root)
        nodes, features = graphs.features.shape
        edges = graphs.edges.shape[1]
        return {"graphs": len(graphs), "nodes": nodes, "edges": edges, "features": features}
    from gnnhpc.data.graphs import load_graph

    graph = load_graph(data, root)
    nodes, features = graph.features.shape
    return {"nodes": nodes, "edges": graph.edges.shape[1], "features": features}
