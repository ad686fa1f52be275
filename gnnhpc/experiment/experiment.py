"""The experiment: one cell's settings, checked when built, and its id.

All fields are content: two equal experiments measure the same thing and have one cell id. Where
the data are stored, or which partition runs a cell, is not content and not here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import model_validator

from gnnhpc.experiment.capabilities import misfit
from gnnhpc.experiment.experiment_settings import ExperimentSettings
from gnnhpc.optimizers.optimizer import Adam

SPEC_VERSION = 1


class Experiment(ExperimentSettings):
    """One cell: settings that fit together."""

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        derived = self._derived_defaults()
        self.__dict__.update({k: v for k, v in derived.items() if k not in self.model_fields_set})
        found = misfit(self)
        if found is not None:
            raise ValueError(found)
        return self

    def _derived_defaults(self) -> dict[str, Any]:
        """Defaults that follow from other settings.

        Evaluations have a step after warm-up, a graph that becomes chunks keeps its edges, and
        schedule zbv has two virtual stages.
        """
        graph = self.kind == "graph" and self.sampling is None
        cut = graph and self.rebuild == "once" and self.total_chunks > 1
        several = self.schedule == "zbv" and self.layout.stages > 1
        return {
            "test_steps": max(2, self.warmup_steps + 1),
            "chunks": "halo" if cut else "contiguous",
            **({"virtual_stages": 2} if several else {}),
        }

    def profiled_steps(self, start: int) -> int:
        """How many steps after warm-up are profiled, in an attempt that begins at step `start`."""
        measured = max(0, self.train_steps - start - self.warmup_steps)
        return min(self.profile_steps, measured // 4)

    @property
    def whole_graph(self) -> Experiment:
        """What a sampled run evaluates: the whole graph in as many chunks, without losing edges."""
        update = {"sampling": None, "batch_size": None, "chunks": "halo", "task": None}
        return self.model_copy(update=update)

    def content(self) -> dict[str, Any]:
        """The experiment as plain data, defaults left out, so that new fields keep old ids."""
        derived = self._derived_defaults()
        derived.pop("virtual_stages", None)
        changed = {key: getattr(self, key) for key in derived if getattr(self, key) != derived[key]}
        content = self.model_dump(mode="json", exclude_defaults=True) | changed
        content |= {"model": self.model.content(), "data": self.data.content()}
        if self.optimizer != Adam():
            content["optimizer"] = self.optimizer.content()
        if self.task is not None:
            # Its name too, although that is a default.
            content["task"] |= {"name": self.task.name}
        return content

    @cached_property
    def id(self) -> str:
        """A readable name of the main settings, and a hash of all content."""
        canonical = json.dumps([SPEC_VERSION, self.content()], sort_keys=True)
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
        return (
            f"{self.model.label}-{self.data.label}-{self.layout}-m{self.microbatches}"
            f"-s{self.seed}-r{self.repeat}-{digest}"
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy, with an id of its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("id", None)
        return copied
