"""The sampler of neighbours on a GPU: the same bits as the compiled one.

The host waits for the device once to copy the seeds there, and once a layer for the numbers of
edges and nodes that it sampled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnnhpc.kernels.sample_neighbors import FRESH, Drawn, Layer, Memory, index_type
from gnnhpc.kernels.torch.torch_sampler import TorchSampler
from gnnhpc.kernels.triton import sampling_programs as programs
from gnnhpc.kernels.triton.launch import launch, power_of_two, signed

_MOST = 32
"""The largest fan-out that programs sample: they hold the picks of a row in registers."""
_ROWS = 32
"""Rows that a program of one warp samples; it holds a matrix of them and their picks."""
_AT_ONCE = 1024
"""Numbers that a program of one number a place reads."""


class TritonSampler(TorchSampler):
    """Samples as `kernels.sample_neighbors.Sampler` does, on the device that the graph is on.

    Larger fan-outs than 32, and mini-batches that leave out edges, are sampled by torch.
    """

    code = "triton"

    def __init__(self, indptr: Tensor, columns: Tensor) -> None:
        super().__init__(indptr, columns)
        self._marks = torch.zeros(self.count, dtype=torch.int8, device=indptr.device)
        """Nodes that a layer reaches for the first time; zero between layers."""

    def draw(self, layer: Layer, memory: Memory = FRESH) -> Drawn:
        if layer.fanout > _MOST or len(self._left):
            return super().draw(layer, memory)
        rows, nodes = len(self.nodes), self.nodes
        index = index_type(self.columns, self.count)
        ends = memory.empty(rows + 1, index)
        drawn = torch.empty(rows, dtype=index, device=nodes.device)
        counting = (self.indptr, nodes, drawn, rows)
        _run(programs.count_edges, rows, *counting, like=drawn, FANOUT=layer.fanout)
        ends[:1] = 0
        torch.cumsum(drawn, 0, dtype=index, out=ends[1:])

        # The most edges and nodes that there can be: how many there are is known at the end.
        most = min(rows * (layer.fanout + 1), self.count + len(self.columns))
        source, target, edge = (memory.empty(most, index) for _ in range(3))
        self.nodes = nodes.new_empty(min(self.count, rows + most))
        self.nodes[:rows] = nodes
        graph = (self.indptr, self.columns, nodes, ends, self._row)
        key = (layer.seed & 0xFFFFFFFF, layer.seed >> 32, layer.step, layer.layer)
        sizes = (rows, len(self.columns), *map(signed, key))
        launch(
            programs.draw_edges,
            (-(-rows // _ROWS),),
            *(*graph, source, target, edge, self._marks, *sizes),
            like=edge,
            FANOUT=layer.fanout,
            WIDE=power_of_two(layer.fanout),
            ROWS=_ROWS,
            num_warps=1,
        )

        rank = torch.cumsum(self._marks, 0, dtype=torch.int32)
        numbering = (self._marks, rank, self._row, self.nodes, rows, self.count)
        _run(programs.number_nodes, self.count, *numbering, like=edge)
        _run(programs.number_sources, most, source, ends, self._row, rows, like=edge)
        count, new = torch.stack((ends[-1].long(), rank[-1].long())).tolist()
        self.nodes = self.nodes[: rows + new]
        return Drawn(ends, source[:count], target[:count], edge[:count], rows + new)


def _run(
    program: object, count: int, *args: Tensor | int, like: Tensor, **constants: object
) -> None:
    """Run a program of one number a place on so many."""
    launch(program, (-(-count // _AT_ONCE),), *args, like=like, AT_ONCE=_AT_ONCE, **constants)
