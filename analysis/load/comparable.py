"""Which cells may be averaged and compared: those with equal settings and one environment key.

The environment of a cell is what its numbers depend on besides its settings: code, packages, CPU,
threads, kernels, and settings of the site.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

Environment = Mapping[str, str]
"""What a cell ran in, by name: `threads a rank`, `torch`, ...; empty for a cell without records."""
Headers = Sequence[Mapping[str, Any]]
"""The headers of the ranks of one cell."""

FREE_SETTINGS = (
    *("batch_size", "train_steps", "test_steps", "test_every", "warmup_steps"),
    *("batchnorm", "schedule", "virtual_stages", "engine", "activation_checkpointing"),
    *("bucket_mib", "chunks", "rebuild", "balance", "cuda_graph"),
)
"""Settings in which cells may differ that a speedup compares, besides the layout."""
LAYOUT_SETTINGS = ("layout", "microbatches")
SEPARATE = "environment"
"""The setting that distinguishes cells of several environments where they are separate rows."""
RUN = "run"
"""The setting of cells whose run has another environment than another run of the report."""
RUN_FOLDER = "run_folder"
"""The column of cells with the name of the run folder that each is from."""
_TRANSFERS = "transfers"
"""Depends on the layout, so it is compared only between cells of one configuration."""
_HEADER_FIELDS = {
    "code": "code",
    "CPU model": "cpu_model",
    "instructions": "cpu_capability",
    "threads a rank": "threads",
    "implementation": "implementation",
    _TRANSFERS: "transfers",
}
_DEVICE_FIELDS = {
    "GPU": "name",
    "GPU driver": "driver",
    "CUDA": "cuda",
    "NCCL": "nccl",
    "TF32": "tf32",
}


def environment_of(headers: Headers) -> dict[str, str]:
    """The environment that the ranks' headers record; a value joins what ranks differ in."""
    found: dict[str, set[str]] = {}
    for header in headers:
        for name, value in _values(header):
            if value not in (None, ""):
                found.setdefault(name, set()).add(str(value))
    return {name: " and ".join(sorted(values)) for name, values in found.items()}


def _values(header: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The name and value of each part of a rank's environment."""
    for name, key in _HEADER_FIELDS.items():
        yield name, header.get(key)
    # The number of a device differs between ranks of one node.
    yield "device", str(header.get("device") or "").partition(":")[0]
    for name, key in _DEVICE_FIELDS.items():
        yield name, (header.get("device_facts") or {}).get(key)
    for compiler in _compilers(header):
        yield "kernels", compiler
    for key, prefix in (("versions", ""), ("site", "site "), ("variables", "variable ")):
        for name, value in sorted((header.get(key) or {}).items()):
            # The code's digest says more than its version, and a site's name decides nothing.
            if (key, name) not in (("versions", "gnnhpc"), ("site", "name")):
                yield prefix + name, value


def _compilers(header: Mapping[str, Any]) -> Iterator[str]:
    """The compilers of the sampler and of fused layers.

    Which of the other kernels a rank needs depends on its stage, on whether it has a neighbour to
    send to, and on the layers that it profiles to balance stages.
    """
    fused = str(header.get("implementation") or "").startswith("fused")
    for name, compiler in (header.get("kernels") or {}).items():
        if name == "sample_neighbors" or (fused and name != "shared_memory_channel"):
            # A kernel that is compiled without a cache names its compiler with a note.
            yield str(compiler).partition(", built for")[0]


def environment_key(environment: Environment) -> str:
    """Equal for cells whose numbers may be compared: a digest of the environment's values."""
    known = {name: value for name, value in environment.items() if name != _TRANSFERS}
    text = json.dumps(known, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if known else ""


def differences(one: Environment, other: Environment) -> dict[str, tuple[str, str]]:
    """The names in which two environments differ, with both values."""
    names = dict.fromkeys((*one, *other))
    return {
        name: (one.get(name, "none"), other.get(name, "none"))
        for name in names
        if one.get(name) != other.get(name)
    }


def same_but_for_implementation(one: Environment, other: Environment) -> bool:
    """Whether two environments differ in nothing but what the implementation decides."""
    return differences(one, other).keys() <= {"implementation", "kernels", _TRANSFERS}


def differences_in_words(one: Environment, other: Environment) -> str:
    """The differing values, such as `threads a rank 1, elsewhere 2; torch 2.13.0, elsewhere
    2.12.1`."""
    return "; ".join(f"{n} {a}, elsewhere {b}" for n, (a, b) in differences(one, other).items())


def values_in_words(values: Sequence[str | None]) -> str:
    """Each value with the number of cells that have it, the most frequent first."""
    counts = Counter("none" if value is None else value for value in values)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{value} ({count})" for value, count in counts.most_common())


def mark_comparable(
    cells: pd.DataFrame, environments: Mapping[str, Environment], settings: Sequence[str]
) -> pd.Series[str]:
    """Why each valid cell is not comparable with most cells of its study; empty where it is.

    A study is all cells of a run that a speedup may compare. Its cells are compared with its most
    frequent environment key, of equally frequent ones the newest. Cells of one configuration need
    equal transfers as well.
    """
    words = pd.Series("", index=cells.index, dtype=object)
    found = [environments.get(cell, {}) for cell in cells["cell"]]
    transfers = [{k: v for k, v in each.items() if k == _TRANSFERS} for each in found]
    others = [{k: v for k, v in each.items() if k != _TRANSFERS} for each in found]
    for parts, equal in ((others, study_settings(settings)), (transfers, settings)):
        with_keys = cells.assign(key=[json.dumps(each, sort_keys=True) for each in parts])
        candidates = with_keys[cells["valid"] & (words == "")]
        for _, mine in candidates.groupby([RUN_FOLDER, *equal], dropna=False, sort=False):
            counts = mine.groupby("key", sort=False)["started_at"].agg(["size", "max"])
            main = max(counts.itertuples(), key=lambda row: row[1:]).Index
            usual = parts[mine.index[mine["key"] == main][0]]
            for place in mine.index[mine["key"] != main]:
                words[place] = differences_in_words(parts[place], usual)
    return words


def separate_runs(
    cells: pd.DataFrame, environments: Mapping[str, Environment], settings: Sequence[str]
) -> tuple[pd.Series[str], list[str]]:
    """The run of each cell whose study has several environments, else empty; and why, in lines."""
    labels = pd.Series("", index=cells.index, dtype=object)
    lines: dict[str, None] = {}
    for _, study in cells.groupby(study_settings(settings), dropna=False, sort=False):
        of_runs = study[study["counts"]].drop_duplicates(RUN_FOLDER)["cell"]
        first, *others = [environments[cell] for cell in of_runs] or [{}]
        apart = [one for one in others if environment_key(one) != environment_key(first)]
        for one in apart:
            lines[f"Rows are separate by run: {differences_in_words(one, first)}."] = None
        if apart:
            labels[study.index] = study[RUN_FOLDER]
    return labels, list(lines)


def study_settings(settings: Sequence[str]) -> list[str]:
    """The settings that are equal in all cells that a speedup may compare."""
    return [key for key in settings if key not in (*FREE_SETTINGS, *LAYOUT_SETTINGS)]
