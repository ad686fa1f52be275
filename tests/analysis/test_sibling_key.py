"""Which cells must learn the same: keys agree exactly where a step computes the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.across.sibling_key import evaluated_after, evaluation_key, training_key
from gnnhpc.batches.image_loader import epoch_indices
from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import gat, sampled, vig

PYG_SAGE = {"name": "sage", "layers": 2, "implementation": "pyg"}
layouts = st.sampled_from(["seq", "pp2", "dp2", "dp2-pp2", "dp4"])


def microbatches_of_step(experiment: Experiment, step: int) -> list[tuple[int, ...]]:
    """Which samples share a micro-batch, over all replicas in order, as the loader cuts them."""
    assert experiment.batch_size is not None
    replicas, rows = experiment.layout.replicas, experiment.batch_size // experiment.microbatches
    parts = []
    for replica in range(replicas):
        _, indices = epoch_indices(64, experiment.batch_size, replicas, replica, 0, step)
        parts += [tuple(indices[n : n + rows]) for n in range(0, len(indices), rows)]
    return parts


@settings(deadline=None)
@given(layouts, layouts, *[st.sampled_from([1, 2, 4])] * 2, *[st.sampled_from([4, 8])] * 2)
def test_images_are_siblings_where_the_same_samples_share_a_microbatch(
    layout: str, other: str, m: int, n: int, batch: int, other_batch: int
) -> None:
    one = vig(layout=layout, microbatches=m, batch_size=batch)
    two = vig(layout=other, microbatches=n, batch_size=other_batch)
    same = all(microbatches_of_step(one, s) == microbatches_of_step(two, s) for s in (0, 1, 5))
    assert (training_key(one) == training_key(two)) == same


SAME: list[dict[str, Any]] = [
    {"layout": "pp2"},
    {"schedule": "1f1b", "layout": "pp2"},
    {"schedule": "zero-bubble", "layout": "pp2"},
    {"engine": "pipelining", "layout": "pp2"},
    {"repeat": 3},
    {"balance": "profile"},
    {"train_steps": 60, "warmup_steps": 0},
    {"spans": True, "save_every": 2},
]


@pytest.mark.parametrize("changes", SAME)
def test_who_computes_a_step_does_not_matter(changes: dict[str, Any]) -> None:
    for made in (vig, gat):
        assert training_key(made(**changes)) == training_key(made())
        assert evaluation_key(made(**changes)) == evaluation_key(made())
    slow = {"name": "gat", "implementation": "pyg"}
    assert training_key(gat(model=slow)) == training_key(gat())


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"dtype": "float64"},
        {"optimizer": {"lr": 0.5}},
        {"optimizer": {"name": "sgd"}},
        {"model": {"name": "gat", "dropout": 0.0}},
        {"data": {"name": "synthetic-citation", "nodes": 151}},
    ],
)
def test_what_a_step_computes_does_matter(changes: dict[str, Any]) -> None:
    assert training_key(gat(**changes)) != training_key(gat())


def test_a_graph_in_halo_chunks_is_the_whole_graph_however_it_is_cut() -> None:
    whole = training_key(gat(microbatches=1))
    for layout in ("seq", "pp2", "dp2"):
        for chunks in (2, 3):
            halo = gat(layout=layout, microbatches=chunks, chunks="halo")
            assert training_key(halo) == whole
            assert evaluation_key(halo) == evaluation_key(gat(microbatches=1))


def test_chunks_that_lose_edges_are_siblings_of_as_many_of_their_kind() -> None:
    four = training_key(gat(microbatches=4))
    assert training_key(gat(layout="dp2", microbatches=2)) == four
    assert training_key(gat(microbatches=2)) != four
    assert training_key(gat(microbatches=4, chunks="clustered")) != four
    assert training_key(gat(microbatches=4, chunks="halo")) != four


def test_running_statistics_follow_the_replicas() -> None:
    """The same micro-batches on one replica or on two train alike, and are evaluated otherwise."""
    one, two = vig(microbatches=4), vig(layout="dp2", batch_size=4, microbatches=2)
    assert training_key(one) == training_key(two)
    assert evaluation_key(one) != evaluation_key(two)
    assert evaluation_key(one) != evaluation_key(vig(microbatches=4, batchnorm="deferred"))
    assert evaluation_key(two) == evaluation_key(
        vig(layout="dp2-pp2", batch_size=4, microbatches=2)
    )


ONCE = {"fanouts": [3, 3], "semantics": "once"}
PYG = {"fanouts": [4, 3], "sampler": "pyg"}


def test_sampled_steps_are_equal_where_the_same_is_drawn_by_the_same() -> None:
    """Ours draws the same for replicas and threads; of a library all of its loader is the same."""
    ours = training_key(sampled())
    same = [{"layout": "dp2", "batch_size": 12}, {"microbatches": 3}, {"model": PYG_SAGE}]
    same.append({"sampling": {"fanouts": [4, 3], "workers": 2}})
    for changes in same:
        assert training_key(sampled(**changes)) == ours
    others = [{"fanouts": [4, 4]}, {"fanouts": [4, 3], "replace": True}, ONCE, PYG]
    assert len({ours, *(training_key(sampled(sampling=other)) for other in others)}) == 5
    assert training_key(sampled(batch_size=12)) != ours
    pyg = training_key(sampled(sampling=PYG))
    assert training_key(sampled(sampling=PYG, repeat=1, model=PYG_SAGE)) == pyg
    for changes in ({"layout": "dp2", "batch_size": 12}, {"microbatches": 3}):
        assert training_key(sampled(sampling=PYG, **changes)) != pyg
    assert training_key(sampled(sampling=PYG | {"workers": 2})) != pyg


def test_of_a_model_of_the_users_own_only_equal_micro_batches_are_compared() -> None:
    def own(**changes: Any) -> Experiment:
        model = {"name": "deep:Net", "digest": "d"}
        return gat(model=model, **changes)

    assert training_key(own()) == training_key(own(layout="pp2"))
    assert training_key(own(microbatches=4, chunks="halo")) != training_key(
        own(microbatches=1, chunks="halo")
    )
    assert training_key(own()) != training_key(own(layout="dp2", microbatches=2))


def test_an_evaluated_mini_batch_is_known_by_the_steps_before_it() -> None:
    cell = gat(train_steps=10, test_every=4, test_steps=2)
    assert [evaluated_after(n, cell) for n in range(6)] == [
        (4, 0), (4, 1), (8, 0), (8, 1), (10, 0), (10, 1),
    ]  # fmt: skip
    assert evaluated_after(1, gat(train_steps=10, test_every=None, test_steps=2)) == (10, 1)
