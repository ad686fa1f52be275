"""The second form of every built-in layer, written from the papers for clarity, in float64.

A form is a function of a layer's input, its parameters by their name in the layer, and the settings
of the forward pass. `reference_layer` gives the form of one layer of a model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.convolutions import Convolutions, Gcn, Gin, GraphConv, Sage
from gnnhpc.models.deep_gcn import Deep, Gcnii
from gnnhpc.models.gat import Gat, Gatv2
from gnnhpc.models.vig.model import Vig
from gnnhpc.validation.reference.edge_lists import (
    Activation,
    edge_softmax,
    gcn_weights,
    largest_neighbor,
    mean_divisor,
    product,
    sum_over_edges,
)
from gnnhpc.validation.reference.layer_parts import (
    EPS,
    ForwardPass,
    Parameters,
    batch_norm,
    dropout,
    elu,
    gelu,
    leaky_relu,
    linear,
    log_softmax_layer,
    pool,
    relu,
    relu_dropout,
    relu_dropout_layer,
)

LayerForm = Callable[[Activation, Parameters, ForwardPass], Activation]


def reference_layer(model: object, spec: LayerSpec) -> LayerForm | None:
    """One layer's form; None for a custom model's."""
    match model:
        case Vig():
            return _vig_layer(model, spec)
        case Gat():
            return _attention_layer(model, spec)
        case Deep():
            return _deep_layer(model, spec)
        case Convolutions():
            return _convolution_layer(model, spec)
    return None


def _attention_layer(model: Gat, spec: LayerSpec) -> LayerForm:
    last = spec.number == model.layers - 1
    if spec.kind == "dropout":
        return functools.partial(dropout, spec.name, model.dropout)
    if spec.kind != "attention":
        return log_softmax_layer if last else elu

    def attention(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        """Velickovic et al. 2018, equations 1 to 6, and Brody et al. 2022, equation 7."""
        edges = here.graph
        if isinstance(model, Gatv2):
            source, target = (
                _heads(product(x, p[f"{name}.weight"].T) + p[f"{name}.bias"], model.heads)
                for name in ("lin_l", "lin_r")
            )
            both = source[edges.source] + target[edges.target]
            scores = (leaky_relu(both) * p["att"]).sum(-1)
        else:
            source = _heads(product(x, p["lin.weight"].T), model.heads)
            of_source, of_target = ((source * p[n]).sum(-1) for n in ("att_src", "att_dst"))
            scores = leaky_relu(of_source[edges.source] + of_target[edges.target])
        coefficients = edge_softmax(scores, edges)
        if here.training and model.dropout:
            numbers = edges.number[:, None] * model.heads + torch.arange(model.heads)
            coefficients = coefficients * here.mask(spec.name, model.dropout, numbers)
        messages = coefficients[..., None] * source[edges.source]
        out = torch.zeros_like(source).index_add(0, edges.target, messages)
        return (out.mean(1) if last else out.flatten(1)) + p["bias"]

    return attention


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(len(x), heads, x.shape[1] // heads)


def _convolution_layer(model: Convolutions, spec: LayerSpec) -> LayerForm:
    others: dict[str, LayerForm] = {
        "pooling": functools.partial(pool, mean=model.pooling != "sum"),
        "linear": functools.partial(linear, ""),
        "relu_dropout": functools.partial(relu_dropout_layer, spec.name, model.dropout),
        "log_softmax": log_softmax_layer,
    }
    return others[spec.kind] if spec.kind in others else _convolution(model)


def _convolution(model: Convolutions) -> LayerForm:
    match model:
        case Gcn():
            return _gcn
        case Gin():
            return _gin
        case GraphConv():
            return functools.partial(_neighbors_and_root, "lin_rel", "lin_root", mean=False)
        case Sage(aggregator="mean"):
            return functools.partial(_neighbors_and_root, "lin_l", "lin_r", mean=True)
        case Sage():
            return functools.partial(_sage_max, pool=model.aggregator == "pool")
    raise ValueError(f"model {model.name} has no reference")


def _gcn(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
    """Kipf & Welling 2017, equation 2, self-loops included."""
    return _propagate(product(x, p["lin.weight"].T), here) + p["bias"]


def _gin(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
    """MLP(x + sum over neighbours): Xu et al. 2019, equation 4.1 with eps 0."""
    # The self-loop among the edges is the node itself.
    hidden = sum_over_edges(product(x, p["nn.0.weight"].T), here.graph) + p["nn.0.bias"]
    return relu(hidden) @ p["nn.2.weight"].T + p["nn.2.bias"]


def _neighbors_and_root(
    neighbors: str, root: str, x: Activation, p: Parameters, here: ForwardPass, *, mean: bool
) -> Activation:
    """W_n of the neighbours' sum or mean, plus a bias, plus W_r of the node itself.

    GraphConv (Morris et al. 2019) and GraphSAGE (Hamilton et al. 2017, algorithm 1).
    """
    edges = here.graph.without_loops()
    h = product(x, p[f"{neighbors}.weight"].T)
    weighted = not mean and edges.weight is not None
    weights = edges.weight[:, None].to(h.dtype) if weighted and edges.weight is not None else None
    total = sum_over_edges(h, edges, weights)
    if mean:
        total = total / mean_divisor(edges, h.dtype).clamp(min=1)[:, None]
    return total + p[f"{neighbors}.bias"] + product(x, p[f"{root}.weight"].T)


def _sage_max(x: Activation, p: Parameters, here: ForwardPass, *, pool: bool) -> Activation:
    """The largest of relu(W x + b), or of x: Hamilton et al. 2017, equation 3."""
    values = x if isinstance(x, Tensor) else x.to_dense()
    if pool:
        values = relu(product(x, p["lin.weight"].T) + p["lin.bias"])
    best = largest_neighbor(values, here.graph.without_loops())
    return best @ p["lin_l.weight"].T + p["lin_l.bias"] + product(x, p["lin_r.weight"].T)


def _deep_layer(model: Deep, spec: LayerSpec) -> LayerForm:
    drop = functools.partial(relu_dropout, spec.name, model.dropout)

    def norm_relu_dropout(x: Tensor, p: Parameters, here: ForwardPass) -> Tensor:
        """LayerNorm of each row (Ba et al. 2016), ReLU, and dropout in training."""
        mean = x.mean(1, keepdim=True)
        deviation = ((x - mean).square().mean(1, keepdim=True) + EPS).sqrt()
        return drop((x - mean) / deviation * p["norm.weight"] + p["norm.bias"], here)

    def read_in(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        """W x + b; for GCNII h0 = relu(W x + b), with dropout and without, side by side."""
        out = product(x, p["lin.weight"].T) + p["lin.bias"]
        return torch.cat((drop(out, here), relu(out)), 1) if isinstance(model, Gcnii) else out

    def read_out(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        """A linear layer, after norm, ReLU and dropout, or of the first half of the columns."""
        assert isinstance(x, Tensor)
        gcnii = isinstance(model, Gcnii)
        return linear("lin.", x[:, : model.hidden] if gcnii else norm_relu_dropout(x, p, here), p)

    def resgcn(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        """x + GCN(dropout(relu(norm(x)))): Li et al. 2020, section 3.2."""
        assert isinstance(x, Tensor)
        return x + _propagate(norm_relu_dropout(x, p, here) @ p["lin.weight"].T, here) + p["bias"]

    def gcnii(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        """Chen et al. 2020, equation 5, on [h | h0]."""
        assert isinstance(x, Tensor)
        assert isinstance(model, Gcnii)
        h, first = x[:, : model.hidden], x[:, model.hidden :]
        beta = math.log(model.theta / (spec.number + 1) + 1.0)
        total = (1.0 - model.alpha) * _propagate(h, here) + model.alpha * first
        out = (1.0 - beta) * total + beta * (total @ p["weight1"])
        return torch.cat((drop(out, here), first), 1)

    named = {"input": read_in, "readout": read_out, "log_softmax": log_softmax_layer}
    return named.get(spec.kind, gcnii if isinstance(model, Gcnii) else resgcn)


def _propagate(h: Tensor, here: ForwardPass) -> Tensor:
    """The sum over each node's edges, weighted by 1 / sqrt(d_i d_j), self-loops included."""
    return sum_over_edges(h, here.graph, gcn_weights(here.graph, h.dtype))


def _vig_layer(model: Vig, spec: LayerSpec) -> LayerForm:
    if spec.kind == "readout":
        return _read_image

    def residual(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        """x + BN(W2 GELU(f(BN(W1 x)))); an FFN where f is the identity.

        In a Grapher f is PyG's GraphConv: W_rel of the neighbours' sum plus W_root of the node.
        """
        assert isinstance(x, Tensor)
        rows = x.reshape(-1, x.shape[-1])
        hidden = batch_norm(linear("fc1.", rows, p), p, spec.name, "norm1", here)
        if spec.kind == "grapher":
            source, target = grid_edges(here.side, len(x))
            neighbors = torch.zeros_like(hidden).index_add(0, target, hidden[source])
            hidden = linear("conv.lin_rel.", neighbors, p) + linear("conv.lin_root.", hidden, p)
        update = linear("fc2.", gelu(hidden), p)
        return x + batch_norm(update, p, spec.name, "norm2", here).view_as(x)

    return residual


def _read_image(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
    """W2 GELU(W1 (sum over the nodes))."""
    assert isinstance(x, Tensor)
    return linear("fc2.", gelu(linear("fc1.", x.sum(1), p)), p)


@functools.cache
def grid_edges(side: int, images: int) -> tuple[Tensor, Tensor]:
    """Source and target of each edge between touching pixels, in all images."""
    place = torch.arange(side * side)
    row, column = place // side, place % side
    sources, targets = [], []
    for down, right in ((d, r) for d in (-1, 0, 1) for r in (-1, 0, 1) if (d, r) != (0, 0)):
        inside = (row + down >= 0) & (row + down < side)
        inside &= (column + right >= 0) & (column + right < side)
        targets.append(place[inside])
        sources.append((place + down * side + right)[inside])
    first = torch.arange(images)[:, None] * (side * side)
    return (first + torch.cat(sources)).flatten(), (first + torch.cat(targets)).flatten()
