"""The twin's own reading of an experiment's data, and the pieces of each of its steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from gnnhpc.check.check_slice import CheckSlice
from gnnhpc.check.twin.link_pieces import plain_links
from gnnhpc.check.twin.pieces import Labels, Piece, Pixels, chunk_pieces, graph_piece, image_pieces
from gnnhpc.check.twin.raw_images import raw_images
from gnnhpc.check.twin.sampled import DrawnEdges, drawn_by_library, evaluated_pieces, sampled_pieces
from gnnhpc.data.graphs import load_graph
from gnnhpc.data.images import Split
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.graph import Graph
from gnnhpc.records.schema import Phase


class TwinData(Protocol):
    """Where the twin's pieces come from."""

    def pieces(self, phase: Phase, step: int) -> list[Piece]:
        """The micro-batches of all replicas in one step, or a whole graph."""
        ...


class TwinImages:
    """Raises OSError for files that cannot be read."""

    def __init__(self, part: CheckSlice, root: Path | None) -> None:
        self._experiment, self._side = part.experiment, part.side
        self._root = root
        self._splits: dict[Split, tuple[Pixels, Labels]] = {}

    def pieces(self, phase: Phase, step: int) -> list[Piece]:
        if phase not in self._splits:
            pixels, labels = raw_images(self._experiment.data, self._root, phase)
            self._splits[phase] = pixels[:, :, : self._side, : self._side], labels
        return image_pieces(self._experiment, *self._splits[phase], phase, step)


class TwinGraphData:
    """A graph in one piece; in the run's chunks for a model that is its own twin.

    `drawn` says of a step what a library drew in it.
    """

    def __init__(
        self, part: CheckSlice, graph: Graph, *, whole: bool, drawn: DrawnEdges | None = None
    ) -> None:
        self._drawn = drawn if drawn_by_library(part.experiment) else None
        self._links = plain_links(part.experiment, graph.edges, graph.nodes)
        if self._links is not None:
            edges = np.stack((self._links.source, self._links.target))
            graph = dataclasses.replace(graph, edges=torch.from_numpy(edges), stored_in_edges=None)
        self._part, self._graph, self._whole = part, graph, whole
        self._sampled = part.experiment.sampling is not None
        experiment = part.experiment.whole_graph if self._sampled else part.experiment
        self._evaluated = experiment
        one_piece = whole and not part.experiment.evaluates_sampled
        self._piece = graph_piece(experiment, graph) if one_piece else None
        if self._piece is not None and self._links is not None:
            # Which micro-batch judges which links, the watch of evaluations tells.
            self._piece = dataclasses.replace(self._piece, targets={})

    def pieces(self, phase: Phase, step: int) -> list[Piece]:
        experiment = self._part.experiment
        if phase == "test" and experiment.evaluates_sampled:
            if self._whole:
                return evaluated_pieces(experiment, self._graph)
            return chunk_pieces(experiment, self._part.outlines, self._graph, EVALUATED_STEP)
        if phase == "test":
            experiment = self._evaluated
        elif self._sampled:
            drawn = self._drawn(step) if self._drawn is not None else None
            if self._whole:
                return sampled_pieces(experiment, self._graph, step, drawn, self._links)
            return chunk_pieces(experiment, self._part.outlines, self._graph, step, drawn)
        if self._piece is not None:
            return [self._piece]
        return chunk_pieces(experiment, self._part.outlines, self._graph, step)


def sliced_graph(part: CheckSlice, root: Path | None) -> Graph:
    """The graph of an experiment, or what its slice keeps of it."""
    graph = load_graph(part.experiment.data, root)
    return graph if part.nodes is None else labelled_neighbourhood(graph, part.nodes)


def labelled_neighbourhood(graph: Graph, count: int) -> Graph:
    """About `count` nodes: some of each split, their neighbours as far as there is room, and the
    edges between them, numbered anew in the same order."""
    seeds = [
        mask.nonzero().flatten()[: max(1, count // (4 * len(graph.masks)))]
        for mask in graph.masks.values()
    ]
    chosen = torch.zeros(len(graph.labels), dtype=torch.bool)
    chosen[torch.cat(seeds)] = True
    near = graph.edges[0][chosen[graph.edges[1]]].unique()
    for more in (near, torch.arange(len(chosen))):
        new = more[~chosen[more]]
        chosen[new[: max(0, count - int(chosen.sum()))]] = True
    nodes = chosen.nonzero().flatten()
    number = torch.full((len(chosen),), -1).scatter(0, nodes, torch.arange(len(nodes)))
    kept = chosen[graph.edges].all(0)
    return dataclasses.replace(
        graph,
        features=chosen_rows(graph.features, nodes),
        labels=graph.labels[nodes],
        edges=number[graph.edges[:, kept]],
        masks={split: mask[nodes] for split, mask in graph.masks.items()},
        stored_in_edges=None,
    )


def chosen_rows(features: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """The stored features of these nodes alone."""
    if features.layout != torch.sparse_csr:
        return features[nodes]
    starts, counts = features.crow_indices()[nodes], features.crow_indices().diff()[nodes]
    ends = counts.cumsum(0)
    places = torch.arange(int(ends[-1])) + torch.repeat_interleave(starts - ends + counts, counts)
    return torch.sparse_csr_tensor(
        torch.cat((torch.zeros(1, dtype=ends.dtype), ends)),
        features.col_indices()[places],
        features.values()[places],
        (len(nodes), features.shape[1]),
        check_invariants=False,
    )
