"""Watches evaluations: averaged statistics, modules in evaluation mode, and nothing changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs
from gnnhpc.check.outputs_apart import relative_difference, without_unknown
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.projection import Projection, project
from gnnhpc.check.watches.stage_traffic import sampled
from gnnhpc.check.watches.state_hashes import Hashes, differing, hashes_of, named_in_words
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.models.generators import generators_put_back
from gnnhpc.models.own_attributes import attributes_put_back

_ROWS = 4
"""Images that are evaluated again, to see that each is evaluated by itself."""
SAME = 1e-4
"""Of outputs' norm: by how much the same arithmetic may differ from itself."""
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Evaluated:
    """What one rank held in one evaluation, to be compared over replicas at the end."""

    step: int
    """Of the test phase, the first of this evaluation."""
    own: dict[str, Projection]
    """Of BatchNorm's running statistics before replicas averaged them, by name."""
    averaged: dict[str, Projection]
    buffers: Hashes
    """Of all buffers, as the evaluation used them."""


@dataclass
class EvaluationWatch:
    """Looks at a whole evaluation, outside its measured steps."""

    stage: Stage
    findings: Findings
    own_model: bool = False
    """A user's layers may need all rows of a micro-batch together."""
    evaluated: list[Evaluated] = field(default_factory=list)
    _step: int = 0
    _own: dict[str, Projection] = field(default_factory=dict)
    _held: Hashes = field(default_factory=dict)

    def before(self, step: int) -> None:
        """Before replicas average their statistics."""
        self._step = step
        self._own = self._statistics()

    def averaged(self) -> None:
        """Before the first evaluated mini-batch."""
        buffers = hashes_of(self.stage.named_buffers())
        self.evaluated.append(Evaluated(self._step, self._own, self._statistics(), buffers))
        self._held = buffers | hashes_of(self.stage.named_parameters())

    def after(self) -> None:
        """After the last evaluated mini-batch."""
        self.findings.looks["evaluation"] += 1
        now = hashes_of([*self.stage.named_buffers(), *self.stage.named_parameters()])
        changed = differing(self._held, now)
        if changed:
            cause = f"evaluation changed {named_in_words(changed)}"
            self.findings.add("evaluation", "test", self._step, cause)

    @torch.no_grad()
    def evaluate_again(
        self, part: Stage, x: Inputs, context: Context, output: Tensor | None = None
    ) -> None:
        """A micro-batch that was evaluated, again: no dropout, no statistics of the micro-batch.

        `x` may be a buffer that holds another micro-batch by now; any will do, unless `output`
        are elements of what the step gave of it, as `sampled` takes them.
        """
        with generators_put_back(part.modules()), attributes_put_back(part):
            cause = self._dependence(part, x, context)
            if cause is None and output is not None:
                again = sampled(part(x, context).reshape(-1))
                if not _near(again, output):
                    cause = "its outputs are not what the stage gives of the same inputs now"
        if cause is not None:
            self.findings.add("evaluation", "test", self._step, cause)

    def _dependence(self, part: Stage, x: Inputs, context: Context) -> str | None:
        """What outputs depend on that they must not; masks of dropout follow from the step."""
        images = isinstance(x, Tensor) and context.graph is None and not self.own_model
        given = x[:_ROWS] if isinstance(x, Tensor) and images else x
        first = part(given, context)
        if not _same(first, part(given, replace(context, step=context.step + 1))):
            if _same(first, part(given, context)):
                return "a stage's outputs depend on the step: dropout is active in evaluation"
            return "a stage's outputs differ from one time to the next: something is random"
        if isinstance(given, Tensor) and images and len(given) > 1:
            alone = given.clone()
            alone[1:] = 0.0
            if not _same(first[0], part(alone, context)[0]):
                return (
                    "an image's output depends on the others of its micro-batch: BatchNorm uses "
                    "their statistics, not the running ones"
                )
        return None

    def _statistics(self) -> dict[str, Projection]:
        return {
            name: project(buffer)
            for name, buffer in self.stage.named_buffers()
            if name.endswith(_STATISTICS)
        }


def _same(first: Tensor, again: Tensor) -> bool:
    """Whether a layer gave both of the same inputs.

    To the bit on a CPU; products of stored features and PyG's sums over edges have no fixed order
    on a GPU.
    """
    return torch.equal(first, again) if first.device.type == "cpu" else _near(again, first)


def _near(again: Tensor, output: Tensor) -> bool:
    found, expected = (x.detach().cpu().numpy() for x in (again, output))
    # A number where the other is none is far.
    return relative_difference(*without_unknown(found, expected)) <= SAME
