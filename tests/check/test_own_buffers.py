"""Buffers of a user's layers, which a forward may make, drop, move or look at in any way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.own_models import (
    checked,
    computing,
    invalid,
)

pytestmark = pytest.mark.distributed

MAKES_A_BUFFER = """y = self.lin(x)
        if self.m is None:
            self.m = y.detach().mean(0)
        return y - self.m"""
GROWS_A_BUFFER = """y = self.lin(x)
        if self.training:
            last = [] if self.m is None else [self.m]
            self.m = torch.cat([*last, y.detach().mean(0, keepdim=True)])[-3:]
        return y - self.m.mean(0)"""
KEEPS_ITS_OUTPUT = """y = self.lin(x)
        if self.training:
            self.m = y.detach()
        return y / (1 + y.abs().mean())"""


@pytest.mark.quick("made once-none-pp2", "grows-small-seq")
@pytest.mark.parametrize("layout", ["seq", "pp2"])
@pytest.mark.parametrize("begins", ["None", "torch.zeros(1, 16)"], ids=["none", "small"])
@pytest.mark.parametrize(
    "computes",
    [MAKES_A_BUFFER, GROWS_A_BUFFER, KEEPS_ITS_OUTPUT],
    ids=["made once", "grows", "an output"],
)
def test_buffers_that_a_forward_makes_accuse_nobody(
    computes: str, begins: str, layout: str, tmp_path: Path
) -> None:
    layers = computing(computes, f"self.register_buffer('m', {begins})")
    flags = ["--layout", layout, "--set", "train_steps=4"]
    checks = checked(tmp_path, layers, *flags, ranks=1 if layout == "seq" else 2)
    assert invalid(checks) == []


OTHER_KINDS = {
    "order": "mean.argsort()",
    "truth": "mean > 0",
    "longer": "mean.double()",
    "short": "mean.bfloat16()",
    "shorter": "mean.half()",
}
"""Of numbers, of buffers that a forward makes once."""


@pytest.mark.quick("none")
@pytest.mark.parametrize("begins", ["None", "torch.zeros(0)"], ids=["none", "empty"])
def test_buffers_of_other_numbers_that_a_forward_makes_accuse_nobody(
    begins: str, tmp_path: Path
) -> None:
    lines = ["y = self.lin(x)", "mean = y.detach().mean(0)"]
    for name, made in OTHER_KINDS.items():
        lines += [f"if self.{name} is None or self.{name}.numel() != 16:"]
        lines += [f"    self.{name} = {made}"]
    lines += [f"y = y - self.{name}.float() / 16" for name in OTHER_KINDS]
    keeps = [f"self.register_buffer('{name}', {begins})" for name in OTHER_KINDS]
    layers = computing("\n        ".join([*lines, "return y"]), "\n        ".join(keeps))
    assert invalid(checked(tmp_path, layers, "--set", "train_steps=4")) == []


COMES_AND_GOES = """y = self.lin(x)
        if self.training:
            self.dropped = None
        if self.dropped is not None:
            y = y - self.dropped
        if not hasattr(self, 'new'):
            self.register_buffer('new', y.detach().mean(0))
        if self.plain is None:
            del self.plain
            self.register_buffer('plain', y.detach().mean(0))
        return y - self.new - self.plain"""


@pytest.mark.parametrize("layout", ["seq", pytest.param("pp2", marks=pytest.mark.slow)])
def test_buffers_that_a_forward_drops_or_registers_accuse_nobody(
    layout: str, tmp_path: Path
) -> None:
    keeps = "self.register_buffer('dropped', torch.ones(16)); self.plain = None"
    flags = ["--layout", layout, "--set", "train_steps=4"]
    layers = computing(COMES_AND_GOES, keeps)
    checks = checked(tmp_path, layers, *flags, ranks=1 if layout == "seq" else 2)
    assert invalid(checks) == []


def test_layers_that_need_what_training_kept_are_told(tmp_path: Path) -> None:
    """The final check builds layers anew, which have not trained."""
    computes = """y = self.lin(x)
        if self.training:
            self.kept = y.detach().mean(0)
        return y - self.kept"""
    checks = checked(tmp_path, computing(computes, ""), "--set", "train_steps=4")
    assert invalid(checks) == []
    told = checks["final-check"]
    assert told.verdict == "unknown"
    assert "AttributeError: 'Centre' object has no attribute 'kept'" in told.detail


ODD_BUFFERS = """self.register_buffer('one', torch.zeros(16))
        self.register_buffer('other', self.one)
        self.register_buffer('spread', torch.ones(1).expand(16))
        self.register_buffer('last', torch.full((16,), torch.iinfo(torch.long).max))"""
USES_ODD_BUFFERS = """y = self.lin(x)
        if self.training:
            self.one = self.one + y.detach().mean(0)
        factor = self.spread * (0.5 + (self.last == torch.iinfo(torch.long).max).float())
        return y * factor - self.one + self.other * 0.5"""


@pytest.mark.parametrize("layout", ["seq", pytest.param("dp2", marks=pytest.mark.slow)])
def test_odd_buffers_accuse_nobody(layout: str, tmp_path: Path) -> None:
    """One that two names had, one whose numbers lie in one place, whole numbers beyond 2**53."""
    layers = computing(USES_ODD_BUFFERS, ODD_BUFFERS)
    flags = ["--layout", layout, "--set", "train_steps=4", "--set", "batch_size=16"]
    ranks = 1 if layout == "seq" else 2
    assert invalid(checked(tmp_path, layers, *flags, ranks=ranks)) == []


def test_compiled_modules_with_buffers_are_taken(tmp_path: Path) -> None:
    layers = computing(
        "return self.script(self.lin(x))", "self.script = torch.jit.script(nn.BatchNorm1d(16))"
    )
    assert invalid(checked(tmp_path, layers, "--set", "train_steps=4")) == []


@pytest.mark.quick("negative")
@pytest.mark.parametrize("view", ["conj()", "conj().imag"], ids=["conjugate", "negative"])
def test_buffers_that_are_views_of_complex_numbers_are_taken(view: str, tmp_path: Path) -> None:
    keeps = f"self.register_buffer('n', torch.tensor([1 + 2j]).{view})"
    moved = "self.n.mul_(0.9); return self.lin(x) * (4 + self.n.real.mean())"
    layers = computing(f"if self.training: {moved}\n        {moved.partition('; ')[2]}", keeps)
    flags = ["--set", "train_steps=4", "--set", "save_every=2"]
    assert invalid(checked(tmp_path, layers, *flags)) == []
