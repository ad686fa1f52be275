"""Loads a run folder as data frames: cells, steps, ranks, groups, parts, spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.across.likeness import Facts
from analysis.across.siblings import Siblings
from analysis.loading.cell_rows import attempt_row, cell_row, flat_settings
from analysis.loading.compared_facts import facts_of_attempts, unlike_resumes
from analysis.loading.compared_siblings import siblings_of_run
from analysis.loading.judged_cells import judge_cells
from analysis.loading.rank_frame import rank_frame, step_frame_of_ranks, with_ranks
from analysis.loading.run_folder import RunFolder, read_run_folder
from analysis.stats.noise import add_noise_columns, mark_steps


@dataclass(frozen=True)
class Run:
    """A run folder's records; `cell` is a categorical in manifest order in every frame."""

    root: Path
    cells: pd.DataFrame
    """One row a cell of the manifest: settings, the attempt used, its status and results.
    `valid`: done, and neither an audit nor a sibling speaks against it. `counts`: valid, and like
    what it is joined with; only these are in averages and ratios."""
    steps: pd.DataFrame
    """One row a cell and mini-batch, over all ranks: wall_s the slowest rank's, samples all
    replicas', bubble the share of rank-time in `waited_s`; `kept` says whether it counts (no
    warm-up, and not looked at closely where as many others remain), `outlier` marks and drops
    nothing. Only steps that every rank recorded."""
    ranks: pd.DataFrame
    """One row a rank and mini-batch: the fields of StepRecord, with cell, rank, stage, replica.
    `outside_s` is wait_s, and in older records what an all-reduce took longer than on the replica
    that came last: waiting for other ranks, and what lies between spans. `waited_s` is the same of
    several ranks, as records do not tell the two apart, and 0 of one, which waits for nobody."""
    groups: pd.DataFrame
    """Forward and backward seconds a group of layers, rank and mini-batch."""
    parts: pd.DataFrame
    """Forward and backward seconds a part, rank and mini-batch, of stages of several parts."""
    spans: pd.DataFrame
    """What each rank did inside mini-batches, in runs with `spans: true`."""
    attempts: pd.DataFrame
    """One row an attempt, with its status and whether its records are used; `core_s` is what its
    ranks held, seconds times CPUs."""
    phases: pd.DataFrame
    """One row a cell and phase: warm-up, outliers, and noise of the machine."""
    settings: tuple[str, ...]
    """The columns of `cells` that determine what is measured: all settings but seed and repeat."""
    checks: pd.DataFrame
    """One row a cell and check that is not passed: cell, name, verdict, detail. Those of the audit,
    `siblings` and `unlike`."""
    facts: Mapping[str, Facts] = field(default_factory=dict)
    """Of each cell with records: what its numbers depend on besides its settings."""
    siblings: Siblings = field(default_factory=Siblings)
    """What comparing cells that must learn the same found."""
    provenance: Mapping[str, Any] | None = None
    """From provenance.json: commit, versions, host, command line of the submission."""

    joined: tuple[str, ...] = ()
    """Names of the runs that this one was joined from; `root` is the first one's."""
    joining: tuple[str, ...] = ()
    """How they were joined, in sentences."""

    @property
    def name(self) -> str:
        """The run folder's own name, or those of all that were joined."""
        return " + ".join(self.joined) or self.root.resolve().name

    def with_settings(self, *settings: str) -> Run:
        return replace(self, settings=settings)


def load(run: Path | str, *, apart: bool = False) -> Run:
    """Read a run folder, which may have been copied from elsewhere.

    Of each cell the newest valid attempt is read, else the newest done one, else the newest that
    ended; attempts that have not ended are listed in `attempts` and not read. With `apart`, cells
    that are unlike the most of their study are configurations of their own, by the setting
    `apart`. Cells with damaged records, with those of another cell or of another schema are not
    valid, and a check says what is wrong with each. Raises InputError for a path that is no run
    folder, and for a damaged manifest or provenance.
    """
    folder = read_run_folder(Path(run))
    attempt_facts = facts_of_attempts(folder)
    resumes = unlike_resumes(folder, attempt_facts)
    ranks, redone = rank_frame(folder.frames, folder.files, folder.names, resumes)
    settings = tuple({key: None for c in folder.manifest for key in flat_settings(c.experiment)})
    siblings = siblings_of_run(folder, attempt_facts)
    judged = judge_cells(
        _cell_frame(folder, redone),
        settings,
        folder,
        attempt_facts,
        resumes,
        siblings,
        apart=apart,
    )
    steps, phases = mark_steps(step_frame_of_ranks(ranks, judged.cells["world_size"].to_numpy()))
    return Run(
        root=folder.paths.root,
        cells=judged.cells,
        steps=steps,
        ranks=ranks,
        groups=with_ranks(folder.frames.groups, folder.files, folder.frames, folder.names),
        parts=with_ranks(folder.frames.parts, folder.files, folder.frames, folder.names),
        spans=with_ranks(folder.frames.spans, folder.files, folder.frames, folder.names),
        attempts=_attempt_frame(folder),
        phases=add_noise_columns(phases, ranks),
        settings=judged.settings,
        checks=judged.checks,
        facts=judged.facts,
        siblings=siblings,
        provenance=folder.provenance,
    )


def _cell_frame(folder: RunFolder, redone: Any) -> pd.DataFrame:
    cells = pd.DataFrame(
        [
            cell_row(cell, attempt, attempts, headers)
            for cell, attempt, attempts, headers in zip(
                folder.manifest, folder.chosen, folder.attempts_of, folder.headers, strict=True
            )
        ]
    )
    cells["cell"] = pd.Categorical(cells["cell"], folder.names)
    cells["redone"] = redone
    return cells


def _attempt_frame(folder: RunFolder) -> pd.DataFrame:
    return pd.DataFrame(
        [
            attempt_row(cell, attempt, used)
            for cell, attempts, used in zip(
                folder.manifest, folder.attempts_of, folder.chosen, strict=True
            )
            for attempt in attempts
        ],
        columns=[
            *("cell", "attempt", "status", "valid", "used", "resumed_from", "job", "failure"),
            "core_s",
        ],
    )
