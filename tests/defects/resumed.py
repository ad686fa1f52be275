"""Defects of checkpoints: an attempt that fails, a change, and the attempt that resumes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.batches.image_loader import ImageLoader
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell
from gnnhpc.models.seeding import seed_all
from gnnhpc.records.content_digest import with_digest
from gnnhpc.records.resume import FACTS_FILE, digests
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.training import checkpoint
from gnnhpc.training.loop import TrainingLoop
from tests.defects.patching import around
from tests.defects.reading import Complaint, Outcome, judged
from tests.defects.settings import VIG, VIG_PARTS, VIG_REPLICAS, Setting
from tests.tools.cells import manifest_of, run
from tests.tools.forked import Plant

KIND = "checkpoints"
EVERY, FAILS_AT = 3, 7
"""Steps between checkpoints, and the step before which the first attempt fails."""


@dataclass(frozen=True)
class ResumeDefect:
    """What is changed between two attempts, or in the second one's code."""

    name: str
    kind: str = KIND
    setting: Setting = VIG
    between: Callable[[Path, Path], None] | None = None
    """Of a checkpoint, and of one of another cell of the same model."""
    plant: Plant | None = None
    skips: bool = False
    """Whether the checkpoint is to be skipped, and the run to be right without it."""


def fails() -> None:
    """The plant of the first attempt."""

    def step(true: Any, trainer: Trainer, number: int, *args: Any) -> Any:
        if number == FAILS_AT and trainer.experiment.save_every:
            raise RuntimeError("planted to fail")
        return true(trainer, number, *args)

    around(Trainer, "_train_step", step)


def resumed_run(folder: Path, defect: ResumeDefect | None, setting: Setting = VIG) -> Outcome:
    """What the resumed attempt's result says; passed if it used a checkpoint and is valid."""
    setting = defect.setting if defect else setting
    mine, other = (_experiment(setting, seed) for seed in (0, 1))
    cells = manifest_of(folder, mine, other)
    used = cells[: 2 if defect and defect.between else 1]
    points = [_checkpoint(folder, cell) for cell in used if run(folder, cell, plant=fails)]
    if defect and defect.between:
        defect.between(points[0], points[1])
    ran = run(folder, cells[0], plant=defect.plant if defect else None)
    outcome = judged(ran.result)
    if defect and defect.skips and ran.result.valid:
        step = (ran.result.resumed_from or {}).get("step", 0)
        if step < 2 * EVERY:
            said = Complaint("checkpoint", f"skipped: resumed at step {step}")
            return Outcome([said], passed=False)
    return outcome


def _experiment(setting: Setting, seed: int) -> Experiment:
    return setting.experiment().model_copy(update={"save_every": EVERY, "seed": seed})


def _checkpoint(folder: Path, cell: Cell) -> Path:
    attempt = RunPaths(folder).cell(cell.id).attempts()[-1]
    return sorted(attempt.checkpoints.glob("step-*"))[-1]


def _damage(mine: Path, other: Path) -> None:
    path = max(mine.glob("*.distcp"), key=lambda file: file.stat().st_size)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _foreign(mine: Path, other: Path) -> None:
    shutil.rmtree(mine)
    shutil.copytree(other, mine)


def _foreign_tensors(mine: Path, other: Path) -> None:
    """With the facts mended, as somebody would who knows what is looked at."""
    facts = json.loads((mine / FACTS_FILE).read_text())
    _foreign(mine, other)
    facts["files"] = digests(mine)
    (mine / FACTS_FILE).write_text(json.dumps(with_digest(facts)))


def _other_step(mine: Path, other: Path) -> None:
    facts = json.loads((mine / FACTS_FILE).read_text())
    facts["step"] += 1
    (mine / FACTS_FILE).write_text(json.dumps(with_digest(facts)))


def _other_code(mine: Path, other: Path) -> None:
    facts = json.loads((mine / FACTS_FILE).read_text())
    facts["written_by"]["code"] = "0" * 16
    (mine / FACTS_FILE).write_text(json.dumps(with_digest(facts)))


def without_moments() -> None:
    """The optimizer begins anew at a resume."""

    def load(true: Any, path: Path, mesh: Any, stage: Any, optimizer: Any) -> None:
        true(path, mesh, stage, optimizer)
        optimizer.state.clear()

    around(checkpoint, "load", load)


def without_buffers() -> None:
    """BatchNorm's running statistics begin anew at a resume."""

    def load(true: Any, path: Path, mesh: Any, stage: Any, optimizer: Any) -> None:
        fresh = {name: buffer.clone() for name, buffer in stage.named_buffers()}
        true(path, mesh, stage, optimizer)
        for name, buffer in stage.named_buffers():
            buffer.copy_(fresh[name])

    around(checkpoint, "load", load)


def without_a_stage() -> None:
    """One stage keeps its initial values."""
    from tests.defects.patching import rank

    def load(true: Any, path: Path, mesh: Any, stage: Any, optimizer: Any) -> None:
        fresh = {name: p.detach().clone() for name, p in stage.named_parameters()}
        true(path, mesh, stage, optimizer)
        if rank() == 1:
            for name, parameter in stage.named_parameters():
                parameter.data.copy_(fresh[name])

    around(checkpoint, "load", load)


def parts_exchanged() -> None:
    """Two parts of the first stage have the same shapes."""
    from tests.defects.patching import rank

    def load(true: Any, path: Path, mesh: Any, stage: Any, optimizer: Any) -> None:
        true(path, mesh, stage, optimizer)
        if rank() == 0:
            first, second = (part.parameters() for part in stage.parts)
            for one, other in zip(first, second, strict=True):
                one.data, other.data = other.data, one.data

    around(checkpoint, "load", load)


def other_generators() -> None:
    """Layers that draw get other random numbers than without the interruption."""
    around(checkpoint, "restore_generators", lambda true, mesh, states: seed_all(17))


def order_anew() -> None:
    """The data begin with the first mini-batch again."""

    def opened(true: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        first = kwargs["start"]
        true(loader, *args, **kwargs | {"start": 0, "stop": kwargs["stop"] - first})

    around(ImageLoader, "__init__", opened)


RESUME_DEFECTS = {
    defect.name: defect
    for defect in (
        ResumeDefect("a checkpoint with one bit changed", between=_damage, skips=True),
        ResumeDefect("a checkpoint of another cell", between=_foreign, skips=True),
        ResumeDefect("a checkpoint with another cell's tensors", between=_foreign_tensors),
        ResumeDefect("a checkpoint that says a later step", between=_other_step, skips=True),
        ResumeDefect("a checkpoint of other code", between=_other_code, skips=True),
        ResumeDefect("Adam's moments lost at a resume", plant=without_moments),
        ResumeDefect("BatchNorm's statistics lost at a resume", plant=without_buffers),
        ResumeDefect("the order of the data begun anew at a resume", plant=order_anew),
        ResumeDefect("generators set otherwise at a resume", plant=other_generators),
        ResumeDefect("a stage that is not restored at a resume", plant=without_a_stage),
        ResumeDefect(
            "a stage's parts exchanged at a resume", setting=VIG_PARTS, plant=parts_exchanged
        ),
    )
}
HEALTHY = (VIG, VIG_REPLICAS, VIG_PARTS)
