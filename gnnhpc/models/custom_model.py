"""A custom model: `module:Class` in a spec, from a file beside it or on PYTHONPATH.

Before it is loaded it has only its name and settings: status and reports need no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ConfigDict, PrivateAttr, ValidationError

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.core.settings import input_error
from gnnhpc.models.import_custom_model import (
    ALLOWED,
    error_text,
    import_source,
    source_digest,
    source_of,
)
from gnnhpc.models.model import Model, Outputs


class CustomModel(Model):
    """A user's model as a spec or a manifest names it; `planned` checks its settings.

    `digest` is the digest of the source that it was planned with.
    """

    model_config = ConfigDict(extra="allow")

    digest: str | None = None
    _loaded: Model | None = PrivateAttr(default=None)
    _source: Path | None = PrivateAttr(default=None)

    @property
    def label(self) -> str:
        return self.name.replace(":", ".")

    @property
    def takes(self) -> tuple[Kind, ...]:  # type: ignore[override]
        return self._loaded.takes if self._loaded else get_args(Kind)

    @property
    def uses_edge_weight(self) -> bool:  # type: ignore[override]
        return self._loaded is None or self._loaded.uses_edge_weight

    @property
    def loaded(self) -> Model:
        assert self._loaded is not None, f"model {self.name} is used before it was loaded"
        return self._loaded

    @property
    def source(self) -> Path:
        """The file, or the folder of the package, that it was loaded from."""
        assert self._source is not None, f"model {self.name} is used before it was loaded"
        return self._source

    def planned(self, folder: Path) -> Model:
        """The same model with its digest and without settings that have their defaults.

        Raises InputError for a file, class or setting that does not follow the protocol, and for a
        digest other than the source's.
        """
        digest = self._find([folder])
        settings = self.loaded.model_dump(mode="json", exclude_defaults=True) | {"name": self.name}
        plan = CustomModel.model_validate(settings | {"digest": digest})
        plan._loaded, plan._source = self._loaded, self._source
        return plan

    def load(self, folders: Sequence[Path]) -> None:
        """Load the class. Raises InputError as `planned`, and if the source has changed since."""
        if self._loaded is None:
            self._find(folders)

    def _find(self, folders: Sequence[Path]) -> str:
        """Load the class from its source, and return the digest of that."""
        source = source_of(self.name, folders)
        digest = source_digest(source)
        if self.digest is not None and digest != self.digest:
            raise InputError(
                f"model {self.name}",
                "digest",
                f"{digest} in {source}",
                f"{self.digest}, the source that the cell was planned with",
            )
        self._loaded, self._source = _build(self, source), source
        return digest

    def outline(self, facts: Facts) -> Sequence[LayerSpec]:
        """The layers. Raises InputError for any error in the user's `outline`."""
        try:
            return tuple(self.loaded.outline(facts))
        except (Exception, SystemExit) as error:
            raise InputError(
                f"model {self.name}", "outline", error_text(error), "a list of gnnhpc.Layer"
            ) from error

    def content(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest} | dict(self.model_extra or {})


def is_custom(name: str) -> bool:
    """Whether a name is `module:Class`."""
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in parts)


def _build(model: CustomModel, source: Path) -> Model:
    """An instance of the user's class with these settings."""
    where = f"model {model.name}"
    cls = _class(model.name, source, where)
    try:
        return cls.model_validate(dict(model.model_extra or {}) | {"name": model.name})
    except ValidationError as error:
        raise input_error(error, where, cls) from None
    except (Exception, SystemExit) as error:
        found = f"{error_text(error)} while its settings were checked"
        raise InputError(where, None, found, "a ValueError for a setting that is wrong") from error


def _class(name: str, source: Path, where: str) -> type[Model]:
    """The user's class; raises InputError for one that does not follow the protocol."""
    module_name, _, attribute = name.partition(":")
    found = getattr(import_source(module_name, source, where), attribute, None)
    if found is None:
        raise InputError(where, None, f"no {attribute} in {source}", ALLOWED)
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise InputError(where, None, f"{attribute}, which is no gnnhpc.Model", ALLOWED)
    for method in ("outline", "build"):
        if getattr(found, method) is getattr(Model, method):
            raise InputError(where, None, f"{attribute} without {method}", "both outline and build")
    kinds, outputs = get_args(Kind), get_args(Outputs)
    # With a type, they would be settings and no attributes of the class.
    takes, returns = getattr(found, "takes", None), getattr(found, "outputs", None)
    if not isinstance(takes, tuple) or not takes or set(takes) - set(kinds):
        allowed = f"a tuple of {' or '.join(map(repr, kinds))}, such as ('graph',)"
        raise InputError(where, "takes", repr(takes), allowed)
    if returns not in outputs:
        raise InputError(where, "outputs", repr(returns), " or ".join(map(repr, outputs)))
    return found
