"""Models on paper: the published parameter counts, and the layers in order."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.data.data_settings import Cifar10
from gnnhpc.data.published_graphs import PUBLISHED
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig


def parameters(layers: tuple[LayerSpec, ...], group: str | None = None) -> int:
    return sum(layer.parameters for layer in layers if group in (None, layer.group))


def test_vig_has_the_published_parameters() -> None:
    layers = Vig().outline(Cifar10().facts())
    assert [parameters(layers, f"block{n}") for n in range(8)] == [138_258] * 8
    assert parameters(layers, "readout") == 14_346
    assert parameters(layers) == 1_120_410


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
