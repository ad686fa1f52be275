"""The self-check in real runs: it changes nothing, it is recorded, and what fails it is named."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gnnhpc.check.capture import RankSeen
from gnnhpc.check.check_slice import check_slice, last_slices
from gnnhpc.check.compare_steps import StepComparison
from gnnhpc.check.seen_ranks import SeenRanks
from gnnhpc.check.self_check import SelfCheck, twin_of
from gnnhpc.check.twin.data import TwinImages
from gnnhpc.distributed.allocator import give_back_freed_memory
from gnnhpc.engines import system_counters
from gnnhpc.engines.system_counters import CLEAR_REFS, forget_peak_rss, peak_rss_mib
from gnnhpc.experiment.experiment import Experiment, OptimizerConfig
from gnnhpc.records.schema import Check
from tests.tools.cells import VIG, Ran, gat, manifest_of, run, vig
from tests.tools.forked import Plant

pytestmark = pytest.mark.distributed

CELLS = {
    "vig seq": vig(),
    "vig pp2 of torch": vig(layout="pp2", engine="pipelining"),
    "vig dp2, deferred": vig(layout="dp2", batchnorm="deferred"),
    "gat dp2-pp2 with halo": gat(layout="dp2-pp2", microbatches=2, chunks="halo"),
    "resgcn pp2 with halo": gat(
        layout="pp2", microbatches=2, chunks="halo", model={"name": "resgcn", "layers": 4}
    ),
    "gat in clusters": gat(layout="pp2", chunks="clustered"),
}


def ran(folder: Path, experiment: Experiment, plant: Plant | None = None) -> Ran:
    (cell,) = manifest_of(folder, experiment)
    return run(folder, cell, plant=plant)


def check_of(found: Ran, name: str = "self-check") -> Check:
    (check,) = [each for each in found.result.audit if each.name == name]
    return check


def without_self_check() -> None:
    from gnnhpc.run.worker import Worker

    def none(*given: Any) -> Any:
        name = "last self-check" if len(given) > 5 else "self-check"
        unknown = Check(name, "unknown", "not run")
        facts = {"seconds": 0.0, "peak_forgotten": True, "dead": []}
        return SimpleNamespace(as_check=lambda *_: unknown, **facts)

    Worker._self_check = none  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_run_is_the_same_to_the_bit_with_and_without(name: str, tmp_path: Path) -> None:
    checked = ran(tmp_path / "with", CELLS[name])
    plain = ran(tmp_path / "without", CELLS[name], without_self_check)
    for check in ("self-check", "last self-check"):
        assert check_of(checked, check).verdict == "ok", check_of(checked, check)
        assert check_of(plain, check).verdict == "unknown"
    for phase in ("train", "test"):
        assert checked.losses(phase) == plain.losses(phase)
    (event,) = [line for line in checked.lines(0, "event") if line["name"] == "self-check"]
    values = check_of(checked).values
    assert event["at_s"] == pytest.approx(values["seconds"], abs=1e-3)
    assert values["steps"] == 2
    assert 0 < values["share"] < check_of(checked, "last self-check").values["share"] < 1


def scaled_output(factor: float) -> None:
    """Every second layer's output is a little too large."""
    from gnnhpc.models.vig.fused import FusedFfn

    true = FusedFfn.forward

    def wrong(layer: Any, *args: Any) -> torch.Tensor:
        return true(layer, *args) * factor

    FusedFfn.forward = wrong  # type: ignore[method-assign]


def late_scaled_output() -> None:
    """Layers are right while a run begins, and wrong in training once it is under way."""
    from gnnhpc.models.vig.fused import FusedFfn
    from tests.defects.patching import Steps

    true, steps = FusedFfn.forward, Steps()

    def wrong(layer: Any, *args: Any) -> torch.Tensor:
        return true(layer, *args) * (1.0001 if steps.late and layer.training else 1.0)

    FusedFfn.forward = wrong  # type: ignore[method-assign]


def no_number_after_the_run() -> None:
    """Two steps of the first self-check, six of the run, and then one that is not the twin's."""
    from gnnhpc.models.vig.fused import FusedFfn
    from tests.defects.patching import Steps

    true, steps = FusedFfn.forward, Steps()

    def wrong(layer: Any, *args: Any) -> torch.Tensor:
        return true(layer, *args) * (float("nan") if steps.taken > 8 else 1.0)

    FusedFfn.forward = wrong  # type: ignore[method-assign]


def late_update() -> None:
    from gnnhpc.train import optimizer
    from tests.defects.patching import Steps

    steps, true = Steps(), optimizer._Adam.step

    def wrong(adam: Any, *args: Any) -> Any:
        if steps.late:
            adam.param_groups[0]["betas"] = (0.5, 0.999)
        return true(adam, *args)

    optimizer._Adam.step = wrong


def wrong_update(factor: float) -> None:
    from gnnhpc.train import optimizer

    true = optimizer.build_optimizer

    def build(experiment: Experiment, stage: Any) -> Any:
        built = true(experiment, stage)
        if built is not None and any("block1" in each.name for each in stage.outlines):
            built.param_groups[0]["lr"] *= factor
        return built

    import gnnhpc.train.setup

    gnnhpc.train.setup.build_optimizer = build


def test_a_wrong_layer_is_named(tmp_path: Path) -> None:
    found = ran(tmp_path, vig(layout="pp2"), functools.partial(scaled_output, 1.0001))
    assert not found.result.valid
    assert check_of(found).detail.startswith("outputs: block0.ffn in train step 0, replica 0, ")
    assert "self-check failed, outputs: block0.ffn" in "".join(found.out) + log(found)


def test_what_goes_wrong_later_is_named_at_the_end(tmp_path: Path) -> None:
    found = ran(tmp_path, vig(layout="pp2"), late_scaled_output)
    assert check_of(found).verdict == "ok"
    said = check_of(found, "last self-check").detail
    assert said.startswith("outputs: block0.ffn in train step 6, replica 0, ")
    assert "last self-check failed, outputs: block0.ffn" in "".join(found.out) + log(found)


def test_the_optimizer_goes_on_from_the_state_that_the_run_left(tmp_path: Path) -> None:
    found = ran(tmp_path, gat(layout="pp2", optimizer={"name": "adam", "lr": 0.01}), late_update)
    assert check_of(found).verdict == "ok"
    said = check_of(found, "last self-check").detail
    assert said.startswith("update: layer"), said
    assert "its own gradient in step 6" in said


def log(found: Ran) -> str:
    return "".join(path.read_text() for path in found.attempt.root.glob("rank-*.log"))


def test_a_wrong_update_is_named_with_its_factor(tmp_path: Path) -> None:
    found = ran(tmp_path, vig(layout="pp2"), functools.partial(wrong_update, 10.0))
    assert not found.result.valid
    said = check_of(found).detail
    assert said.startswith("update: block1.")
    assert (
        "moved 10 times as far as the optimizer's rule says of its own gradient in step 0" in said
    )


def test_of_a_loss_near_zero_rounding_is_that_of_the_scores(tmp_path: Path) -> None:
    """In double precision too: in this seed's second step it is 1.3e-6."""
    image = {"name": "synthetic-cifar10", "train": 69, "test": 90, "image_size": 13}
    settings: dict[str, Any] = {
        "data": image,
        "batch_size": 1,
        "microbatches": 1,
        "dtype": "float64",
    }
    settings |= {"optimizer": {"name": "sgd", "lr": 1e-3}, "test_steps": 0, "seed": 165_978}
    found = ran(tmp_path, vig(**settings, model={**VIG["model"], "blocks": 4}))
    assert check_of(found).verdict == "ok"


def test_a_loss_that_is_no_number_is_said_and_the_run_says_which(tmp_path: Path) -> None:
    found = ran(tmp_path, gat(layout="dp2", optimizer={"lr": 1e30}))
    assert "self-check failed, loss: the train loss of step " in log(found)
    assert found.result.failure is not None
    assert found.result.failure.step is not None


def test_a_step_more_that_is_no_number_in_the_run_alone_is_invalid(tmp_path: Path) -> None:
    found = ran(tmp_path, vig(layout="pp2"), no_number_after_the_run)
    assert check_of(found).verdict == "ok"
    last = check_of(found, "last self-check")
    assert last.verdict == "invalid"
    assert last.detail.startswith("loss: the train loss of step 6 is nan on ")


DIVERGING = vig(
    layout="seq", dtype="float64", train_steps=7, test_steps=1, optimizer={"name": "sgd", "lr": 0.1}
)
STANDING = DIVERGING.model_copy(update={"optimizer": OptimizerConfig(name="sgd", lr=1e-100)})


@pytest.mark.parametrize(
    ("experiment", "readout", "diverges"),
    [
        (DIVERGING, 1.0, False),
        # Scores of the step are the product of two such numbers.
        (DIVERGING, 1e200, True),
        # The step's are finite, and what it leads to is not, which the evaluation shows.
        (
            DIVERGING.model_copy(update={"optimizer": OptimizerConfig(name="sgd", lr=1e308)}),
            1,
            True,
        ),
        # In single precision it is less that overflows.
        (STANDING, 1e20, False),
        (STANDING.model_copy(update={"dtype": "float32"}), 1e20, True),
    ],
)
def test_a_run_diverges_where_its_twin_does(
    experiment: Experiment, readout: float, diverges: bool
) -> None:
    """The twin goes on, after six steps, from what a run holds with this much larger a readout."""
    (part,) = last_slices(experiment.model_copy(update={"train_steps": 6}))
    twin, single = twin_of(part)
    held = {n: v.double().numpy() for n, v in twin.initial().items()}
    held = {n: v * readout if n.startswith("readout.fc") else v for n, v in held.items()}
    buffers = {n: b.double().numpy() for n, b in twin.buffers(0).items()}
    data = TwinImages(part, None)
    comparison = StepComparison(
        experiment=part.experiment,
        layers=[layer.name for layer in part.outlines],
        stages={},
        seen=SeenRanks([RankSeen(0, 0, held, buffers, {})], 1),
        twin=twin,
        pieces=data.pieces,
        single=single,
        first=part.first,
    )
    assert comparison.diverges() is diverges


def test_a_run_that_diverges_is_not_accused() -> None:
    check = SelfCheck(
        check_slice(vig()), 1.0, not_finite="the test loss of step 0 is nan", diverges=True
    ).as_check(60.0)
    assert check.verdict == "unknown"
    assert check.detail.startswith(
        "the run diverges: one step more, the test loss of step 0 is nan"
    )


def test_what_it_costs_is_said_where_it_is_too_much() -> None:
    part = check_slice(vig())
    check = SelfCheck(part, 4.0, random_layer="layer3").as_check(60.0)
    assert check.verdict == "unknown"
    assert "layer3 gives another output each time" in check.detail
    assert "took 4 s, 6.7% of the attempt, more than 3 s and 5%: this machine" in check.detail
    assert "more than" not in SelfCheck(part, 4.0, random_layer="x").as_check(600.0).detail
    assert "more than" not in SelfCheck(part, 2.0, random_layer="x").as_check(3.0).detail


@pytest.mark.skipif(not os.access(CLEAR_REFS, os.W_OK), reason="this system keeps a peak for good")
def test_a_peak_of_memory_can_be_forgotten() -> None:
    """The twin's memory is not the run's."""
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    with_block = peak_rss_mib()
    del block
    # As a run does: a test before may have had the allocator keep what is freed.
    give_back_freed_memory()
    assert forget_peak_rss()
    assert peak_rss_mib() < with_block - 32


def test_a_peak_that_is_kept_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    del block
    give_back_freed_memory()
    monkeypatch.setattr(system_counters, "CLEAR_REFS", tmp_path / "clear_refs")
    assert not forget_peak_rss()
