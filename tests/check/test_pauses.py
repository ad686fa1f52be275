"""A rank that the machine stops for a while, wherever it is, is late, and nobody's mistake."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.train.loop import Trainer
from tests.tools.cells import Ran, gat, manifest_of, run, sampled, vig
from tests.tools.pauses import Pauses

pytestmark = pytest.mark.distributed


def invalid(ran: Ran) -> list[str]:
    assert ran.statuses == [0] * len(ran.statuses), ran.err
    return [f"{each.name}: {each.detail}" for each in ran.result.audit if each.verdict == "invalid"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "experiment", "computes"),
    [
        ("gat", gat(layout="dp2", train_steps=12), False),
        ("vig", vig(layout="pp2", train_steps=12), False),
        ("sampled", sampled(layout="dp2", batch_size=12, train_steps=12), False),
        ("vig", vig(layout="dp2-pp2", engine="pipelining"), True),
    ],
)
def test_pauses_anywhere_accuse_nobody(
    name: str, experiment: Experiment, computes: bool, tmp_path: Path
) -> None:
    (cell,) = manifest_of(tmp_path / "run", experiment)
    ran = run(tmp_path / "run", cell, plant=Pauses(every=2_000, longest_s=0.01, computes=computes))
    assert invalid(ran) == []


def test_pauses_in_an_only_step_accuse_nobody(tmp_path: Path) -> None:
    """In a run of few steps a pause may be in most, or in each."""
    experiment = vig(layout="pp2", train_steps=1, test_steps=0, activation_checkpointing="always")
    (cell,) = manifest_of(tmp_path / "run", experiment)
    assert invalid(run(tmp_path / "run", cell, plant=pause_before_layers)) == []


def pause_before_layers() -> None:
    """Where a forward's clock runs, and its layers' hooks have not been called yet."""
    from_layer = Stage._from_layer

    def paused(stage: Stage, number: int, *args: Any) -> Any:
        if number == 0:
            time.sleep(0.01)
        return from_layer(stage, number, *args)

    Stage._from_layer = paused  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_pause_where_a_step_begins_accuses_nobody(when: str, tmp_path: Path) -> None:
    """Its stamp and its length are of two readings, however far these are apart."""
    (cell,) = manifest_of(tmp_path / "run", gat(layout="seq", microbatches=1))
    assert invalid(run(tmp_path / "run", cell, plant=partial(pause_at_start, when))) == []


def pause_at_start(when: str) -> None:
    """Of every third step, longer than what lies between two of these: a busy machine may make
    others longer."""
    start: Callable[[StepTimer], None] = StepTimer.start
    count = 0

    def paused(timer: StepTimer, *_: Any) -> None:
        nonlocal count
        count += 1
        if count % 3 == 0 and when == "before":
            time.sleep(0.1)
        start(timer)
        if count % 3 == 0 and when == "after":
            time.sleep(0.1)

    StepTimer.start = paused  # type: ignore[method-assign]


def test_processes_that_take_the_processor_when_they_may_draw_accuse_nobody(
    tmp_path: Path,
) -> None:
    """They are woken in each step, and on a busy machine run before who woke them."""
    (cell,) = manifest_of(tmp_path / "run", sampled(batch_size=12, train_steps=4))
    assert invalid(run(tmp_path / "run", cell, plant=pause_after_waking)) == []


def pause_after_waking() -> None:
    let_draw = Trainer._let_draw

    def paused(trainer: Trainer) -> None:
        let_draw(trainer)
        time.sleep(0.02)

    Trainer._let_draw = paused  # type: ignore[method-assign]
