"""Checks at a run's boundaries: they find what breaks, are joined, and keep their own errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.transfers import Sender
from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.models.seeding import seed_generators
from gnnhpc.records.schema import Check
from gnnhpc.training.listeners import Listener
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.validation import boundary, engine_parity
from gnnhpc.validation.boundary import Validation
from gnnhpc.validation.invariants import Invariants
from gnnhpc.validation.layers import compare_layer
from gnnhpc.validation.verdicts import one_a_name
from tests.defects.defect import around, rank
from tests.tools.cells import GAT, VIG, gat, manifest_of, run
from tests.tools.forked import ROOT
from tests.validation.test_kernel_parity import parts_of

Break = Callable[[TrainingLoop], None]


def checks_of_a_run(raw: dict[str, Any], damage: Break | None = None) -> dict[str, Check]:
    """The checks of a run, which `damage` has changed after its validation began."""
    experiment, parts, mesh = parts_of(raw)
    seed_generators(experiment.seed, mesh.rank)
    validation = Validation(experiment, parts, mesh, None)
    validation.at_start(0)
    loop = TrainingLoop(parts, listeners=validation.listeners)
    if damage is not None:
        damage(loop)
    else:
        loop.after_step = lambda done: validation.at_checkpoint(done) if done == 2 else None
    loop.run()
    return {check.name: check for check in validation.at_end(experiment.train_steps)}


def test_every_check_is_made_once() -> None:
    checks = checks_of_a_run(GAT)
    assert {check.verdict for check in checks.values()} == {"ok"}
    assert {"engine-parity", "kernel-parity", "data", "chunks", "order", "optimizer"} <= set(checks)
    layers = checks["kernel-parity"].values["layers"]
    assert set(checks["kernel-parity"].values["compared"]) == set(layers)


def other_seed(loop: TrainingLoop) -> None:
    torch.manual_seed(7)


def parameters_changed_after_an_evaluation(loop: TrainingLoop) -> None:
    class AfterEvaluation(Listener):
        @torch.no_grad()
        def evaluation_ended(self) -> None:
            next(loop.parts.stage.parameters()).add_(1e-3)

    loop.listeners = [*loop.listeners, AfterEvaluation()]


def batches_counted_twice(loop: TrainingLoop) -> None:
    norms = [m for m in loop.parts.stage.modules() if isinstance(m, BatchNorm)]
    step: Any = loop.parts.engine.train_step

    def counted(batch: Batch) -> Any:
        norms[0].num_batches_tracked.add_(1)
        return step(batch)

    loop.parts.engine.train_step = counted  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("check", "damage"),
    [
        ("generators", other_seed),
        ("continuity", parameters_changed_after_an_evaluation),
        ("running statistics", batches_counted_twice),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_of_a_run_is_found(check: str, damage: Break) -> None:
    assert checks_of_a_run(VIG, damage)[check].verdict == "invalid"


def sending_fails() -> None:
    def failing(original: Any, sender: Sender, tensor: torch.Tensor) -> None:
        if rank() == 1 and tensor.dtype == torch.float64:
            raise RuntimeError("planted")
        original(sender, tensor)

    around(Sender, "send", failing)


@pytest.mark.distributed
def test_a_rank_that_fails_between_others_ends_the_attempt_as_invalid(tmp_path: Path) -> None:
    (cell,) = manifest_of(tmp_path, gat(layout="pp2"))
    ran = run(tmp_path, cell, plant=sending_fails)
    assert all(ran.statuses)
    (check,) = ran.result.audit
    assert (check.name, check.verdict) == ("engine-parity", "invalid")
    assert "RuntimeError: planted" in check.detail
    assert not ran.result.valid


def broken(*_arguments: Any, **_settings: Any) -> Any:
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize(
    ("owner", "name", "check"),
    [
        (boundary, "check_chunks", "chunks"),
        (engine_parity, "set_up", "engine-parity"),
        (engine_parity, "_compare", "engine-parity"),
        (compare_layer, "compared_rows", "kernel-parity"),
        (Invariants, "step_taken", "invariants"),
        (Invariants, "between_steps", "invariants"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_in_a_check_makes_it_inconclusive(
    owner: Any,
    name: str,
    check: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(owner, name, broken)
    found = checks_of_a_run(GAT)
    assert found[check].verdict == "inconclusive"
    assert "ZeroDivisionError: planted" in found[check].detail
    assert "Traceback" in caplog.text
    assert {c.verdict for c in found.values() if c.name != check} == {"ok"}


def test_an_error_in_the_audit_makes_it_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "audit_records", broken)
    paths: Any = tmp_path
    experiment, parts, mesh = parts_of(GAT)
    (check,) = Validation(experiment, parts, mesh, None).audit(paths, paths)
    assert (check.name, check.verdict) == ("record-audit", "inconclusive")


def test_checks_of_both_ends_are_joined_by_name() -> None:
    good, other, bad = (Check("k", v, d) for v, d in (("ok", "x"), ("ok", "y"), ("invalid", "z")))
    (joined,) = one_a_name([good, other])
    assert (joined.verdict, joined.detail) == ("ok", "x; y")
    assert one_a_name([good, bad]) == one_a_name([bad, good]) == [bad]


def test_parity_of_vig_does_not_import_a_compiler() -> None:
    """It would take seconds on every rank."""
    program = (
        "import sys\n"
        "from tests.tools.cells import VIG\n"
        "from tests.validation.test_kernel_parity import parts_of\n"
        "from gnnhpc.validation.engine_parity import check_engine\n"
        "from gnnhpc.validation.kernel_parity import check_kernels\n"
        "from gnnhpc.validation.steps.parity_slice import parity_slice\n"
        "run = parts_of(VIG)\n"
        "(check,) = check_engine(*run, None, parity_slice(run[0]))\n"
        "(other,) = check_kernels(*run, when='start')\n"
        "print(check.verdict, other.verdict)\n"
        "print({'torch._dynamo', 'torch._inductor'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.stdout.split("\n")[:2] == ["ok ok", "set()"], found.stderr
