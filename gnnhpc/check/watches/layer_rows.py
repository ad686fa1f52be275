"""Keeps few rows of what every layer is given and gives in an evaluation, layer by layer.

What a node's output depends on may be the whole of a large graph. A row of one layer depends on its
neighbours' rows alone, which are few enough to be computed again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnnhpc.check.plain.graph import Ids, PlainGraph
from gnnhpc.core.layer_specs import LayerSpec, row_changes
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.features import Rows, take_rows
from gnnhpc.models.context import Context

ROWS = 4
"""Of each layer's output, over all micro-batches; of each of them one at least."""


@dataclass(frozen=True)
class AskedRows:
    """Few nodes, and all edges into them."""

    asked: Ids
    """Nodes, int64 [n], ascending."""
    nodes: Ids
    """These and their neighbours, int64 [rows], ascending."""
    source: Ids
    """Of each edge into `asked`, self-loops last, its row among `nodes`; int64 [edges]."""
    target: Ids
    """int64 [edges]"""
    number: Ids
    """In the graph, int64 [edges]."""
    left_out: Ids
    """Of each of `nodes` how many edges into it are not here, int64 [rows]."""

    @classmethod
    def of(cls, graph: PlainGraph, asked: Ids) -> AskedRows:
        into = [graph.edges_into(int(node)) for node in asked]
        nodes = np.unique(np.concatenate([asked, *(sources for sources, _ in into)]))
        source = np.concatenate([*(sources for sources, _ in into), asked])
        target = np.concatenate([np.repeat(asked, [len(numbers) for _, numbers in into]), asked])
        number = np.concatenate([*(numbers for _, numbers in into), len(graph.source) + asked])
        rows = np.searchsorted(nodes, target)
        present = np.bincount(rows, minlength=len(nodes))
        # Every node has a self-loop besides.
        left_out = graph.degrees(nodes) + 1 - present
        return cls(asked, nodes, np.searchsorted(nodes, source), rows, number, left_out)


@dataclass(frozen=True)
class LayerRows:
    """What one layer was given and gave of few nodes."""

    outline: LayerSpec
    asked: AskedRows
    microbatch: int
    inputs: Tensor
    """[rows, ...]: of the nodes that were asked for, and of their neighbours if it uses these."""
    outputs: Tensor
    """[n, ...]: of the nodes that were asked for."""

    @property
    def nodes(self) -> Ids:
        """Of the inputs' rows."""
        return self.asked.nodes if self.outline.rows == "hop" else self.asked.asked

    @property
    def rows(self) -> Ids:
        """Where among these those are that were asked for."""
        return np.searchsorted(self.nodes, self.asked.asked)


class _Looked(NamedTuple):
    """What is asked of one micro-batch: of all nodes' hidden rows, and of its own outputs."""

    chunk: GraphChunk
    hidden: AskedRows
    last: AskedRows


@dataclass
class LayerRowsWatch:
    """Looks at a stage's layers between `attach` and `detach`, in every micro-batch: each has a
    first and a last layer of its own."""

    stage: Stage
    kept: list[LayerRows] = field(default_factory=list)
    """One a layer and micro-batch, of the last evaluation that was looked at."""
    _looked: dict[int, _Looked] = field(default_factory=dict)

    def attach(
        self, graph: PlainGraph, chunks: Mapping[int, GraphChunk], rule: random.Random
    ) -> None:
        """For micro-batches of `chunks`: layers compute all nodes, the last layer their own."""
        self.kept = []
        rows = max(1, ROWS // len(chunks))
        for m, chunk in chunks.items():
            assert chunk.in_turn is not None
            own = chunk.nodes[: chunk.own].cpu().numpy()
            hidden = AskedRows.of(graph, _drawn(range(graph.nodes), rows, rule))
            last = AskedRows.of(graph, _drawn(own.tolist(), rows, rule))
            self._looked[m] = _Looked(chunk, hidden, last)
        for part in self.stage.parts:
            part.on_layer.append(self._keep)

    def detach(self) -> None:
        for part in self.stage.parts:
            part.on_layer[:] = [told for told in part.on_layer if told != self._keep]
        self._looked = {}

    def _keep(
        self,
        outline: LayerSpec,
        changes: int,
        x: Rows,
        output: Rows,
        context: Context,
    ) -> None:
        looked = self._looked.get(context.microbatch)
        if looked is None:
            return
        chunk = looked.chunk
        before = changes - row_changes([outline])
        asked = looked.last if changes == len(chunk.rows) - 1 else looked.hidden
        nodes = asked.nodes if before < changes else asked.asked
        inputs = _dense_rows(x, _places(chunk, before, nodes))
        outputs = _dense_rows(output, _places(chunk, changes, asked.asked))
        self.kept.append(LayerRows(outline, asked, context.microbatch, inputs, outputs))


def _dense_rows(x: Rows, places: Tensor) -> Tensor:
    rows = take_rows(x, places)
    return (rows if isinstance(rows, Tensor) else rows.to_dense()).cpu()


def _drawn(nodes: Sequence[int], rows: int, rule: random.Random) -> Ids:
    return np.sort(np.array(rule.sample(nodes, min(rows, len(nodes))), dtype=np.int64))


def _places(chunk: GraphChunk, changes: int, nodes: Ids) -> Tensor:
    """Where the rows of `nodes` are after so many layers that change the rows.

    What enters the first of these, and what leaves the last, begins with the chunk's own nodes; in
    between rows are in the order of nodes.
    """
    if 0 < changes < len(chunk.rows) - 1:
        return torch.from_numpy(nodes)
    return torch.from_numpy((nodes - int(chunk.nodes[0])) % len(chunk.nodes))
