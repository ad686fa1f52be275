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
from gnnhpc.optimizers.adam import Adam

SPEC_VERSION = 1


class Experiment(ExperimentSettings):
    """One cell: settings that fit together."""

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        self._take_defaults()
        found = misfit(self)
        if found is not None:
            raise ValueError(found)
        return self

    def _take_defaults(self) -> None:
        """Defaults that follow from other settings.

        A graph that becomes several chunks keeps all its edges, unless its settings say more, and
        schedule zbv has two virtual stages.
        """
        whole = self.kind == "graph" and self.sampling is None and self.rebuild == "once"
        if whole and self.total_chunks > 1 and "chunks" not in self.model_fields_set:
            self.__dict__["chunks"] = "halo"
        several = self.schedule == "zbv" and self.layout.stages > 1
        if several and "virtual_stages" not in self.model_fields_set:
            self.__dict__["virtual_stages"] = 2

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
        return self.model_dump(mode="json", exclude_defaults=True) | {
            "model": self.model.content(),
            "data": self.data.content(),
            **({"optimizer": self.optimizer.content()} if self.optimizer != Adam() else {}),
            **self._task_content(),
        }

    def _task_content(self) -> dict[str, Any]:
        """The task's settings, and its name although that is a default."""
        if self.task is None:
            return {}
        settings = self.task.model_dump(mode="json", exclude_defaults=True)
        return {"task": {"name": self.task.name, **settings}}

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
