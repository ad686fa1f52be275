"""A user's own model is its own twin: its layers one after another in one process.

What its layers compute is taken as it is; engine, data, loss, optimizer and evaluation are not.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from gnnhpc.check.twin.backward_rounding import BackwardRounding
from gnnhpc.check.twin.forward_rounding import ForwardRounding
from gnnhpc.check.twin.layer import seed_of
from gnnhpc.check.twin.optimizer_rule import Array
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.scene import Kink, SparseInput
from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.generators import generators_put_back, seed_all
from gnnhpc.models.loose_state import own_generators, take_plain_values
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.own_attributes import attributes_of
from gnnhpc.models.set_buffers import all_buffers, copy_into, set_buffers

M = TypeVar("M", bound=nn.Module)
X = TypeVar("X", Tensor, Tensor | SparseRows)


class OwnModelTwin:
    """Layers built as the model says, in the run's precision; buffers are each replica's own."""

    def __init__(self, experiment: Experiment, outlines: LayerSpecs) -> None:
        self.experiment = experiment
        self.names = [outline.name for outline in outlines]
        self.dtype: torch.dtype = getattr(torch, experiment.dtype)
        self.kinks: list[Kink] = []
        model = experiment.model.loaded
        options = BuildOptions(self.dtype, experiment.batchnorm)
        layers = nn.ModuleList()
        with generators_put_back():
            for outline in outlines:
                seed_all(seed_of(experiment.seed, outline.name))
                layers.append(model.build(outline, options))
        self.frozen = frozenset(
            f"{name}.{key}"
            for name, layer in zip(self.names, layers, strict=True)
            for key, value in layer.named_parameters()
            if not value.requires_grad
        )
        self._hooks = {
            f"{name}.{key}": list(value._backward_hooks.values())
            for name, layer in zip(self.names, layers, strict=True)
            for key, value in layer.named_parameters()
            if value._backward_hooks
        }
        """Of parameters, which a copy of them has not."""
        self._replicas = [_most_copied(layers) for _ in range(experiment.layout.replicas)]
        self.unplaced: list[str] = []
        """Buffers of the run that the layers have no place for when they are built anew."""
        self._rounding: ForwardRounding | None = None
        self._given: dict[nn.Module, contextlib.ExitStack] = {}
        """Around layers that have a step's parameters: until the next forward, as a backward may
        compute one again."""

    def copied(self) -> OwnModelTwin | None:
        """Another with the same parameters, whose forwards move nothing of this one; None where a
        layer keeps what cannot be copied."""
        other = copy.copy(self)
        other._given = {}
        try:
            other._replicas = [_copied(each, each.parameters()) for each in self._replicas]
        # A user's object may refuse in any way.
        except Exception:
            return None
        return other

    def rounded(self, rounding: ForwardRounding | None) -> OwnModelTwin | None:
        """A copy whose inputs and parameters are off by one rounding: what a layer adds up is then
        off by as much as its terms round, also where little is left of them."""
        other = self.copied()
        if other is not None:
            other._rounding = rounding
        return other

    def initial(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": value.detach().clone()
            for name, layer in zip(self.names, self._replicas[0], strict=True)
            for key, value in layer.named_parameters()
        }

    def random_layer(self, piece: Piece) -> str | None:
        """The first layer whose output in training differs from one time to the next, if any; also
        one that would be called again and draws from a generator that it has."""
        layers = _most_copied(self._replicas[0]).train()
        x = _run_inputs(piece, self.dtype)
        with torch.no_grad():
            for name, layer in zip(self.names, layers, strict=True):
                copies = [_most_copied(layer) for _ in range(2)]
                outputs = [_dense(each(_own(x), piece.context)) for each in copies]
                drawn = own_generators(copies[0]) != own_generators(layer)
                if drawn or not torch.equal(outputs[0], outputs[1]):
                    return name
                x = outputs[0]
        return None

    def forward(
        self,
        piece: Piece,
        parameters: Mapping[str, Tensor],
        step: int,
        *,
        training: bool,
        rounding: BackwardRounding | None = None,
    ) -> list[Tensor | SparseInput]:
        """The output of each layer, the last's last; parameters by full name.

        Its layers round as they do: `rounding` adds nothing to them.
        """
        layers = self._replicas[piece.replica]
        layers.train(training)
        x = self._rounded(_run_inputs(piece, self.dtype))
        outputs: list[Tensor | SparseInput] = []
        for name, layer in zip(self.names, layers, strict=True):
            own = {
                # One that is frozen may be of whole numbers.
                key: self._hooked(f"{name}.{key}", parameters[f"{name}.{key}"].to(held.dtype))
                for key, held in layer.named_parameters()
                if f"{name}.{key}" in parameters
            }
            self._give(layer, own)
            x = layer(_own(x), piece.context)
            outputs.append(_dense(x))
        return outputs

    def _give(self, layer: nn.Module, parameters: dict[str, Tensor]) -> None:
        if layer in self._given:
            self._given.pop(layer).close()
        self._given[layer] = contextlib.ExitStack()
        given = _reparametrize_module(layer, parameters, tie_weights=True)
        self._given[layer].enter_context(given)

    def _hooked(self, name: str, value: Tensor) -> Tensor:
        """With its hooks, which see one micro-batch's gradient, as in a run."""
        value = self._rounded(value)
        hooks = self._hooks.get(name, [])
        if hooks and value.requires_grad:
            value = value.view_as(value)
            for hook in hooks:
                value.register_hook(hook)
        return value

    def _rounded(self, x: X) -> X:
        """With this draw's errors; numbers that are stored sparsely, or whole, have none."""
        if self._rounding is None or not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        return self._rounding.of(x)

    def end_minibatch(self) -> None:
        for layers in self._replicas:
            for module in layers.modules():
                end = getattr(module, "end_minibatch", None)
                if end is not None:
                    end()

    def average_statistics(self) -> None:
        """What an evaluation does first, with BatchNorm's running statistics."""
        each = [dict(layers.named_buffers()) for layers in self._replicas]
        for name in each[0]:
            if name.endswith(("running_mean", "running_var")):
                mean = torch.stack([buffers[name] for buffers in each]).mean(0)
                for buffers in each:
                    copy_into(buffers[name], mean)

    def restore(
        self, replica: int, state: Mapping[str, Array], kinds: Mapping[str, torch.dtype]
    ) -> None:
        """Take one replica's buffers from what a run holds; of those without a kind of number the
        twin's own stays."""
        layers = self._replicas[replica]
        own = {key: b.dtype for key, b in all_buffers(layers).items()}
        held = {}
        for number, name in enumerate(self.names):
            start = f"{name}."
            for key in (key for key in state if key.startswith(start)):
                place = f"{number}.{key.removeprefix(start)}"
                kind = kinds.get(key, own.get(place))
                # One without a kind is a parameter.
                if kind is not None:
                    held[place] = torch.from_numpy(state[key]).to(kind)
        unplaced = [path.split(".", 1) for path in set_buffers(layers, held)]
        self.unplaced = [f"{self.names[int(number)]}.{key}" for number, key in unplaced]

    def take_values(self, replica: int, values: Mapping[str, Any], *, known: bool) -> None:
        """And the numbers and words that its layers keep as plain attributes; `known`: those alone
        that they have now."""
        for name, layer in zip(self.names, self._replicas[replica], strict=True):
            take_plain_values(layer, name, values, known=known)

    def buffers(self, replica: int) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": value.detach().clone()
            for name, layer in zip(self.names, self._replicas[replica], strict=True)
            for key, value in layer.named_buffers()
        }


def _copied(module: M, shared: Iterable[object] = ()) -> M:
    """With the same `shared` objects, and without a gradient's graph of those that it keeps, as of
    an output, or of a weight that it has computed."""
    known: dict[int, Any] = {id(each): each for each in shared}
    for value in (value for each in module.modules() for value in vars(each).values()):
        if isinstance(value, Tensor) and not value.is_leaf:
            known[id(value)] = value.detach().clone()
    return copy.deepcopy(module, known)


def _most_copied(module: M) -> M:
    """With the same attributes where these cannot be copied, as a lock or an open file."""
    try:
        return _copied(module)
    # A user's object may refuse in any way.
    except Exception:
        values = [v for each in module.modules() for v in attributes_of(each).values.values()]
        return _copied(module, [value for value in values if not _can_be_copied(value)])


def _can_be_copied(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


def _run_inputs(piece: Piece, dtype: torch.dtype) -> Tensor | SparseRows:
    if isinstance(piece.own_inputs, Tensor | SparseRows):
        return piece.own_inputs
    assert isinstance(piece.inputs, Tensor)
    return piece.inputs.to(dtype)


def _own(x: Tensor | SparseRows) -> Tensor | SparseRows:
    """For a layer that may change its input in place, which is the output of the one before."""
    return x.clone() if isinstance(x, Tensor) else x


def _dense(x: Tensor | SparseRows) -> Tensor:
    return x if isinstance(x, Tensor) else x.to_dense()
