"""Siblings must learn the same: rounding may grow, a jump is named, repeats are no witnesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.across.departures import BOUNDS
from analysis.across.rounding import MEANINGLESS, relative_difference
from analysis.across.sibling import Sibling
from analysis.across.siblings import Siblings, compare_siblings, in_sentences

STEPS = 40
LOSSES = 3.0 * np.exp(-0.05 * np.arange(STEPS))
NORMS = 2.0 / (1.0 + np.arange(STEPS))
SEQUENTIAL, PIPELINE = (1, 0, 1), (0, 0, 1)


def sibling(name: str, plainness: tuple[int, ...] = PIPELINE, **changes: object) -> Sibling:
    """A cell whose configuration is its name up to the first dot."""
    one = Sibling(name, 1, name.partition(".")[0], plainness, LOSSES, NORMS, {(40, 0): 1.0})
    return dataclasses.replace(one, **changes)  # type: ignore[arg-type]


def jumped(values: np.ndarray, step: int, by: float) -> np.ndarray:
    """The same until `step`, and `by` larger from there on, relative."""
    changed = values.copy()
    changed[step:] *= 1.0 + by
    return changed


def found(siblings: Sequence[Sibling]) -> Siblings:
    return compare_siblings(siblings, ["k"] * len(siblings), ["k"] * len(siblings))


def named(siblings: Sequence[Sibling]) -> dict[str, str]:
    return {one.sibling.cell: in_sentences(one) for one in found(siblings).accusations}


rounding = st.lists(st.floats(-10.0, 10.0), min_size=STEPS, max_size=STEPS)


@settings(deadline=None)
@given(rounding, rounding)
def test_rounding_that_grows_is_nobodys_fault(one: list[float], other: list[float]) -> None:
    """Each step up to ten times as far apart as ever before, from one part in ten million on."""
    cells = []
    for signs in (one, other):
        apart, most = np.zeros(STEPS), 1e-7
        for step, factor in enumerate(signs):
            apart[step] = np.clip(factor * most, -0.5, 0.5) if step else 0.0
            most = max(most, abs(apart[step]))
        cells.append(sibling(f"c{len(cells)}", losses=LOSSES * (1.0 + apart)))
    # As a third beside two: the two may differ by twice as much as each does from the third.
    assert named([sibling("seq", SEQUENTIAL), *cells]) == {}


@settings(deadline=None)
@given(
    st.integers(0, STEPS - 1),
    st.floats(4e-3, 0.4),
    st.integers(3, 7),
    st.integers(0, 6),
    st.sampled_from(["losses", "norms"]),
)
def test_the_one_that_is_alone_is_named_with_its_step(
    step: int, by: float, count: int, who: int, quantity: str
) -> None:
    by = by if quantity == "losses" else by + 0.03
    cells = [sibling("seq", SEQUENTIAL), *(sibling(f"pp{n}") for n in range(2, count + 1))]
    alone = 1 + who % (count - 1)
    changed = jumped(LOSSES if quantity == "losses" else NORMS, step, by)
    cells[alone] = dataclasses.replace(cells[alone], **{quantity: changed})
    said = named(cells)
    assert list(said) == [cells[alone].cell]
    what = "training loss" if quantity == "losses" else "gradient norm"
    assert f"{what} of step {step} is" in said[cells[alone].cell]
    assert f"alone against {count - 1} that agree" in said[cells[alone].cell]


@settings(deadline=None)
@given(st.permutations(range(5)))
def test_the_order_of_cells_does_not_matter(order: list[int]) -> None:
    cells = [
        sibling("seq", SEQUENTIAL),
        sibling("pp2"),
        sibling("pp4", losses=jumped(LOSSES, 3, 0.1)),
        sibling("dp2"),
        sibling("dp4", norms=jumped(NORMS, 0, 0.5)),
    ]
    assert sorted(named([cells[i] for i in order])) == ["dp4", "pp4"]


def test_of_two_that_differ_nobody_is_acquitted() -> None:
    said = named([sibling("seq", SEQUENTIAL), sibling("pp2", losses=jumped(LOSSES, 5, 0.01))])
    assert sorted(said) == ["pp2", "seq"]
    assert all("nobody is acquitted" in words for words in said.values())
    assert all("training loss of step 5" in words for words in said.values())


def test_a_wrong_engine_does_not_outvote_the_sequential_run() -> None:
    wrong = jumped(NORMS, 0, 3.0)
    pipelines = [sibling(f"pp{n}", norms=wrong) for n in (2, 4, 8)]
    said = named([sibling("seq", SEQUENTIAL), *pipelines])
    assert sorted(said) == ["pp2", "pp4", "pp8", "seq"]
    assert "1 on this side, 3 on that" in said["seq"]
    assert "losses agree: backward pass" in said["pp4"]


def test_repeats_repeat_the_same_mistake_and_have_one_vote() -> None:
    wrong = [sibling(f"dp2.{n}", losses=jumped(LOSSES, 0, 0.1)) for n in range(3)]
    assert sorted(named([sibling("pp2"), *wrong])) == ["dp2.0", "dp2.1", "dp2.2", "pp2"]
    right = [sibling("seq", SEQUENTIAL), sibling("pp2")]
    said = named([*right, *wrong])
    assert sorted(said) == ["dp2.0", "dp2.1", "dp2.2"]
    assert "3 agree in this against 2" in said["dp2.1"]


def test_one_repeat_of_three_is_alone_among_its_own() -> None:
    cells = [sibling(f"seq.{n}", SEQUENTIAL) for n in range(3)]
    cells[1] = dataclasses.replace(cells[1], losses=jumped(LOSSES, 20, 0.05))
    assert list(named(cells)) == ["seq.1"]


def test_evaluation_that_leaves_where_training_agrees_is_named() -> None:
    cells = [sibling("seq", SEQUENTIAL), sibling("pp2"), sibling("pp4", tests={(40, 0): 1.2})]
    said = named(cells)
    assert list(said) == ["pp4"]
    assert "test loss of mini-batch 0 after 40 steps is 1.2, there 1" in said["pp4"]
    assert "running statistics, evaluation mode or test data" in said["pp4"]


def test_evaluations_of_other_keys_are_not_compared() -> None:
    cells = [sibling("seq", SEQUENTIAL), sibling("dp2", tests={(40, 0): 1.2})]
    assert not compare_siblings(cells, ["k", "k"], ["one", "other"]).accusations


def test_a_likely_cause_follows_from_the_place() -> None:
    right = [sibling("seq", SEQUENTIAL), sibling("pp2")]
    causes = {
        step: named([*right, sibling("pp4", losses=jumped(LOSSES, step, 0.1))])["pp4"]
        for step in (0, 1, 9)
    }
    assert "initial values, data or forward pass" in causes[0]
    assert "optimizer step, or the second mini-batch" in causes[1]
    assert "the order of data" in causes[9]


def test_what_else_differs_is_said() -> None:
    cells = [
        sibling("seq", SEQUENTIAL, facts={"code": "aaa"}),
        sibling("pp2", facts={"code": "aaa"}),
        sibling("pp4", facts={"code": "bbb"}, losses=jumped(LOSSES, 0, 0.1)),
    ]
    assert "unlike: code bbb beside aaa" in named(cells)["pp4"]


def test_nothing_is_concluded_once_rounding_has_grown_too_far() -> None:
    """Nor is what is missing: a step that one did not record."""
    grown = LOSSES * (1.0 + 1e-7 * 10.0 ** (np.arange(STEPS) / 4.0).clip(max=6.0))
    two = [sibling("seq", SEQUENTIAL), sibling("pp2", losses=grown)]
    assert named(two) == {}
    judged, _ = found(two).steps
    apart = relative_difference(LOSSES, grown[None])[0]
    growth = BOUNDS["float32"].loss.growth
    assert judged == 1 + int(np.argmax(growth * np.maximum.accumulate(apart) >= MEANINGLESS))
    late = grown.copy()
    late[judged + 1 :] = 9.0
    assert named([two[0], sibling("pp2", losses=late)]) == {}
    missing = LOSSES.copy()
    missing[7] = np.nan
    assert named([two[0], sibling("pp2", losses=missing)]) == {}
    assert found([two[0], sibling("pp2")]).steps == (STEPS, STEPS)


def test_those_that_compute_alike_are_judged_for_longer() -> None:
    """Beside reference layers rounding has grown too far by the step at which one jumps."""
    other = LOSSES * (1.0 + 1e-6 * 10.0 ** (np.arange(STEPS) / 4.0).clip(max=5.0))
    cells = [
        sibling("plain", (1, 1, 1), losses=other, ways=("reference",)),
        sibling("seq", SEQUENTIAL, ways=("fused",)),
        sibling("pp2", ways=("fused",)),
        sibling("pp4", ways=("fused",), losses=jumped(LOSSES, 30, 0.05)),
    ]
    assert list(named(cells)) == ["pp4"]
    assert found(cells).steps == (found(cells[:2]).steps[0], STEPS)


def test_double_precision_is_held_to_its_own_rounding() -> None:
    nearly = LOSSES * (1.0 + 1e-8)
    assert named([sibling("seq", SEQUENTIAL), sibling("pp2", losses=nearly)]) == {}
    double = [
        sibling("seq", SEQUENTIAL, dtype="float64"),
        sibling("pp2", losses=nearly, dtype="float64"),
    ]
    assert sorted(named(double)) == ["pp2", "seq"]


def test_a_loss_near_zero_is_held_to_what_it_is_the_difference_of() -> None:
    """Nine decimals are recorded, and a learnt loss of 1e-7 has lost most of its digits."""
    learnt = np.concatenate([LOSSES[:10], np.full(30, 1.49e-7)])
    nearly = np.where(learnt < 1e-6, 1.51e-7, learnt)
    assert named([sibling("seq", SEQUENTIAL, losses=learnt), sibling("pp2", losses=nearly)]) == {}
    wrong = np.where(learnt < 1e-6, 1e-4, learnt)
    assert named([sibling("seq", SEQUENTIAL, losses=learnt), sibling("pp2", losses=wrong)])


def test_trainings_that_diverge_together_are_not_judged_any_more() -> None:
    """Nor is a step of infinite norm on both sides; one that diverges alone has left."""
    exploding = 3.0 * 1e4 ** np.arange(STEPS).clip(max=8)
    other = exploding * np.where(np.arange(STEPS) < 3, 1.0, 1.4)
    norms = np.where(np.arange(STEPS) < 3, NORMS, np.inf)
    one = sibling("seq", SEQUENTIAL, losses=exploding, norms=norms)
    assert named([one, sibling("pp2", losses=other, norms=norms)]) == {}
    said = named([sibling("seq", SEQUENTIAL), sibling("pp2"), sibling("pp4", losses=exploding)])
    assert list(said) == ["pp4"]
    endless = np.where(np.arange(STEPS) < 3, NORMS, np.inf)
    said = named([sibling("seq", SEQUENTIAL), sibling("pp2"), sibling("pp4", norms=endless)])
    assert "gradient norm of step 3 is inf" in said["pp4"]


def test_families_are_judged_apart_and_a_cell_alone_is_not() -> None:
    cells = [sibling("a"), sibling("b"), sibling("c", losses=LOSSES * 2), sibling("d")]
    found = compare_siblings(cells, ["x", "x", "y", "z"], ["x", "x", "y", "z"])
    assert (found.families, sorted(found.compared)) == (1, ["a", "b"])
    assert not found.accusations


@pytest.mark.parametrize("layout", [SEQUENTIAL, PIPELINE])
def test_two_attempts_at_a_cell_must_agree(layout: tuple[int, ...]) -> None:
    first = sibling("a", layout)
    again = dataclasses.replace(first, attempt=2, losses=jumped(LOSSES, 8, 0.01))
    said = found([first, again]).accusations
    assert [(one.sibling.attempt, one.acquitted) for one in said] == [(1, False), (2, False)]
