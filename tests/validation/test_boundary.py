"""What happens to checks at a run's boundaries: they are joined, and their own errors are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnhpc.models.seeding import seed_generators
from gnnhpc.records.schema import Check
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.validation import boundary, engine_parity
from gnnhpc.validation.boundary import Validation
from gnnhpc.validation.invariants import Invariants
from gnnhpc.validation.layers import compare_layer
from gnnhpc.validation.verdicts import one_a_name
from tests.tools.cells import GAT
from tests.validation.test_kernel_parity import parts_of


def checks_of_a_run(raw: dict[str, Any]) -> dict[str, Check]:
    experiment, parts, mesh = parts_of(raw)
    seed_generators(experiment.seed, mesh.rank)
    validation = Validation(experiment, parts, mesh, None)
    validation.at_start(0)
    loop = TrainingLoop(experiment, mesh, parts, listeners=validation.listeners)
    loop.after_step = lambda done: validation.at_checkpoint(done) if done == 2 else None
    loop.run()
    return {check.name: check for check in validation.at_end(experiment.train_steps)}


def test_every_check_is_made_once() -> None:
    checks = checks_of_a_run(GAT)
    assert {check.verdict for check in checks.values()} == {"ok"}
    assert {"engine-parity", "kernel-parity", "data", "chunks", "order", "optimizer"} <= set(checks)
    layers = checks["kernel-parity"].values["layers"]
    assert set(checks["kernel-parity"].values["compared"]) == set(layers)


def broken(*_arguments: Any, **_settings: Any) -> Any:
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize(
    ("owner", "name", "check"),
    [
        (boundary, "check_chunks", "chunks"),
        (engine_parity, "set_up", "engine-parity"),
        (engine_parity, "_compare", "engine-parity"),
        (compare_layer, "compared_rows", "kernel-parity"),
        (Invariants, "step_taken", "Invariants"),
        (Invariants, "between_steps", "Invariants"),
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
