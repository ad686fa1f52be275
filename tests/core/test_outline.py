"""Models on paper: the published parameter counts, the modules in order, and where they are cut."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.errors import InputError
from gnnhpc.core.outline import LayerOutline
from gnnhpc.data.published import PUBLISHED
from gnnhpc.data.settings import Cifar10
from gnnhpc.models.gat.model import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.spec.experiment import Experiment
from gnnhpc.spec.stages import cut


def parameters(layers: tuple[LayerOutline, ...], group: str | None = None) -> int:
    return sum(layer.parameters for layer in layers if group in (None, layer.group))


def experiment(model: str = "vig", **changes: Any) -> Experiment:
    raw: dict[str, Any] = {"model": {"name": model}, "data": {"name": "cora"}}
    if model == "vig":
        raw |= {"data": {"name": "cifar10"}, "batch_size": 100}
    return Experiment.model_validate(raw | changes)


def test_vig_has_the_published_parameters() -> None:
    layers = Vig().outline(Cifar10().facts())
    assert [parameters(layers, f"block{n}") for n in range(8)] == [138_258] * 8
    assert parameters(layers, "readout") == 14_346
    assert parameters(layers) == 1_120_410


def test_vig_is_grapher_and_ffn_in_turn_then_the_readout() -> None:
    layers = Vig(blocks=2).outline(Cifar10().facts())
    assert [layer.name for layer in layers] == [
        "block0.grapher",
        "block0.ffn",
        "block1.grapher",
        "block1.ffn",
        "readout",
    ]
    assert {layer.inputs for layer in layers} == {(1024, 3)}
    assert [layer.shape for layer in layers] == [(1024, 3)] * 4 + [(10,)]


def test_gat_is_the_six_published_modules() -> None:
    layers = Gat().outline(PUBLISHED["cora"].facts)
    assert [(layer.kind, layer.inputs, layer.shape) for layer in layers] == [
        ("dropout", (1433,), (1433,)),
        ("attention", (1433,), (64,)),
        ("elu", (64,), (64,)),
        ("dropout", (64,), (64,)),
        ("attention", (64,), (7,)),
        ("log_softmax", (7,), (7,)),
    ]
    # 1433 x 64 weights, twice 64 attention, 64 bias; then 64 x 56, twice 56, 7.
    assert parameters(layers, "layer0") == 1433 * 64 + 3 * 64
    assert parameters(layers, "layer1") == 64 * 56 + 2 * 56 + 7


def test_both_implementations_have_the_same_layers() -> None:
    for model, facts in ((Vig(), Cifar10().facts()), (Gat(), PUBLISHED["pubmed"].facts)):
        plain = model.model_copy(update={"implementation": "reference"}).outline(facts)
        for fused, reference in zip(model.outline(facts), plain, strict=True):
            assert (fused.name, fused.shape) == (reference.name, reference.shape)
            assert fused.parameters == reference.parameters


@given(
    st.one_of(
        st.builds(Vig, blocks=st.integers(1, 5), ffn_width=st.integers(1, 9)),
        st.builds(Gat, layers=st.integers(2, 6), heads=st.integers(1, 9)),
    ),
    st.sampled_from(sorted(PUBLISHED)),
)
def test_each_layer_takes_what_the_one_before_gives(model: Vig | Gat, graph: str) -> None:
    layers = model.outline(Cifar10().facts() if model.name == "vig" else PUBLISHED[graph].facts)
    assert len({layer.name for layer in layers}) == len(layers)
    for before, after in pairwise(layers):
        assert after.inputs == before.shape
    assert all(layer.cost > 0 for layer in layers)
    groups = [name for name, _ in groupby(layer.group for layer in layers)]
    assert len(groups) == len(set(groups)), "a group's layers stand together"


def test_four_stages_of_gat_as_published() -> None:
    parts = cut(experiment("gat", layout="pp4", balance=[1, 2, 1, 2]))
    assert parts == [range(1), range(1, 3), range(3, 4), range(4, 6)]


@pytest.mark.parametrize("layout", ["seq", "pp2", "pp4", "dp2-pp3", "pp17"])
def test_the_default_cut_covers_the_model_in_order(layout: str) -> None:
    parts = cut(experiment(layout=layout))
    assert len(parts) == experiment(layout=layout).layout.stages
    assert [i for part in parts for i in part] == list(range(17))
    assert all(parts)


def test_measured_costs_replace_the_outlines_and_a_balance_beats_both() -> None:
    costs = [10.0] + [1.0] * 16
    assert cut(experiment(layout="pp2"), costs=costs) == [range(4), range(4, 17)]
    given_balance = experiment(layout="pp2", balance=[8, 9])
    assert cut(given_balance, costs=costs) == [range(8), range(8, 17)]


@pytest.mark.parametrize(
    ("model", "changes", "line"),
    [
        ("vig", {"layout": "pp18"}, "layout: found pp18; allowed: at most 17 stages, one a layer"),
        ("gat", {"layout": "dp2-pp7"}, "layout: found dp2-pp7; allowed: at most 6 stages, "),
        (
            "vig",
            {"layout": "pp4", "balance": [6, 2, 2, 2]},
            "balance: found [6, 2, 2, 2]; allowed: counts that add up to 17",
        ),
    ],
)
def test_cuts_that_cannot_be_are_refused(model: str, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        cut(experiment(model, **changes), where="sweep.yaml")
    assert str(refused.value).startswith(f"sweep.yaml: {line}")
