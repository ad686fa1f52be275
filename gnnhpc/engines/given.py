"""What a layer was given, and whether it has changed that in place.

Autograd calls a tensor's hooks where the gradient of what it held then arrives, also after a change
in place; but not those of a view, whose part of the graph a change makes anew, from what the view's
base held before.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node

from gnnhpc.graphs.sparse_rows import SparseRows


@dataclass(slots=True)
class Given:
    x: Tensor | SparseRows
    made_by: Node | None
    """What autograd had `x` from."""
    base_made_by: Node | None
    """And what `x` was a view of, if it was one."""

    @classmethod
    def of(cls, x: Tensor | SparseRows) -> Given:
        if not isinstance(x, Tensor):
            return cls(x, None, None)
        return cls(x, x.grad_fn, x._base.grad_fn if x._base is not None else None)

    @property
    def is_changed(self) -> bool:
        return isinstance(self.x, Tensor) and self.x.grad_fn is not self.made_by

    def is_handed_on(self, output: Tensor | SparseRows) -> bool:
        """Whether the layer gave it as it was: such a layer has no backward."""
        return output is self.x and not self.is_changed
