"""Reads a run folder: the manifest, the attempts, and the records of those that count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.loading.attempts import Attempt, choose_attempt, read_attempts, resume_chain
from analysis.loading.rank_files import RankFile, RankFrames
from analysis.loading.undamaged import read_undamaged
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.run_facts import read_provenance
from gnnhpc.records.run_paths import RunPaths


@dataclass(frozen=True)
class RunFolder:
    """What a run folder holds; cells are numbered by their position in the manifest."""

    paths: RunPaths
    manifest: list[Cell]
    attempts_of: list[list[Attempt]]
    chosen: list[Attempt | None]
    """Of each cell the attempt that counts, or a newer one that is damaged."""
    files: list[RankFile]
    """Of these attempts and of those that they resumed, without damaged ones."""
    frames: RankFrames
    provenance: Mapping[str, Any] | None
    """None without the file."""

    @property
    def names(self) -> list[str]:
        return [cell.id for cell in self.manifest]

    @cached_property
    def headers(self) -> list[dict[int, list[dict[str, Any]]]]:
        """The ranks' headers of each cell by number of the attempt, newest first."""
        found: list[dict[int, list[dict[str, Any]]]] = [{} for _ in self.manifest]
        for file, header in zip(self.files, self.frames.headers, strict=True):
            if header is not None:
                found[file.cell].setdefault(file.attempt, []).append(header)
        return found


def read_run_folder(root: Path) -> RunFolder:
    """Raises InputError for a path that is no run folder; damaged cells are set apart."""
    paths = RunPaths(root)
    if not paths.root.is_dir():
        raise InputError(paths.root, None, "no such folder", "a run folder")
    manifest = read_manifest(paths.manifest)
    attempts_of = [read_attempts(paths.cell(cell.id)) for cell in manifest]
    chosen = [choose_attempt(attempts) for attempts in attempts_of]
    files = [
        file
        for number, attempt in enumerate(chosen)
        if attempt is not None and not attempt.damage
        for file in rank_files(number, manifest[number], attempt, attempts_of[number])
    ]
    found = read_undamaged(manifest, chosen, files)
    for number, line in found.damage.items():
        _mark_damaged(number, line, chosen, attempts_of)
    return RunFolder(
        paths,
        manifest,
        attempts_of,
        chosen,
        found.files,
        found.frames,
        read_provenance(paths),
    )


def _mark_damaged(
    number: int, line: str, chosen: list[Attempt | None], attempts_of: list[list[Attempt]]
) -> None:
    """Records turn out to be damaged only when they are read; results before."""
    attempt = chosen[number]
    assert attempt is not None
    damaged = replace(attempt, damage=line)
    chosen[number] = damaged
    attempts_of[number] = [
        damaged if one.number == damaged.number else one for one in attempts_of[number]
    ]


def rank_files(
    number: int, cell: Cell, attempt: Attempt, attempts: list[Attempt]
) -> list[RankFile]:
    """The rank files of an attempt and of those that it resumed; if not done, those that exist."""
    warmup = cell.experiment.warmup_steps
    return [
        RankFile(path, number, part.attempt.number, part.first, part.stop, warmup)
        for part in resume_chain(attempt, attempts)
        for path in map(part.attempt.records, range(cell.experiment.process_layout.world_size))
        if attempt.status == "done" or path.exists()
    ]
