"""A user's own model: `module:Class` in a spec, from a file beside it or on PYTHONPATH.

Before it is loaded it is only its name and settings, as status and reports need no more.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, PrivateAttr, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.facts import Facts, Kind
from gnnhpc.core.outline import LayerOutline
from gnnhpc.core.pydantic_errors import input_error
from gnnhpc.models.protocol import Model

_ALLOWED = "a gnnhpc.Model in a file beside the spec or on PYTHONPATH, as module:Class"


class OwnModel(Model):
    """A user's model as a spec or a manifest names it; its settings are checked by `planned`.

    `digest` is that of the sources it was planned with.
    """

    model_config = ConfigDict(extra="allow")

    digest: str | None = None
    _loaded: Model | None = PrivateAttr(default=None)
    _source: Path | None = PrivateAttr(default=None)

    @property
    def label(self) -> str:
        return self.name.replace(":", ".")

    def kinds(self) -> tuple[Kind, ...]:
        return self._loaded.takes if self._loaded else ("images", "graph")

    @property
    def loaded(self) -> Model:
        if self._loaded is None:
            raise RuntimeError(f"model {self.name} is used before it was loaded")
        return self._loaded

    @property
    def source(self) -> Path:
        """The file, or the folder of the package, that it was loaded from."""
        if self._source is None:
            raise RuntimeError(f"model {self.name} is used before it was loaded")
        return self._source

    def planned(self, folder: Path) -> Model:
        """The same with its digest and without settings that have their defaults.

        Raises InputError for a file, class or setting that does not follow the protocol.
        """
        source = source_of(self.name, [folder])
        loaded = _build(self, source)
        settings = loaded.model_dump(mode="json", exclude_defaults=True) | {"name": self.name}
        plan = OwnModel.model_validate(settings | {"digest": source_digest(source)})
        plan._loaded, plan._source = loaded, source
        return plan

    def load(self, folders: Sequence[Path]) -> None:
        """Raises InputError as `planned`, and if the sources have changed since the plan."""
        if self._loaded is not None:
            return
        source = source_of(self.name, folders)
        digest = source_digest(source)
        if self.digest is not None and digest != self.digest:
            raise InputError(
                f"model {self.name}",
                "digest",
                f"{digest} in {source}",
                f"{self.digest}, the sources that the cell was planned with",
            )
        self._loaded, self._source = _build(self, source), source

    def outline(self, facts: Facts) -> Sequence[LayerOutline]:
        """Raises InputError for any error in the user's outline."""
        try:
            return tuple(self.loaded.outline(facts))
        except Exception as error:
            raise InputError(
                f"model {self.name}", "outline", _error_text(error), "a list of gnnhpc.Layer"
            ) from error

    def content(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest} | dict(self.model_extra or {})


def is_own(name: str) -> bool:
    """Whether a name is `module:Class`."""
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in parts)


def source_of(name: str, folders: Sequence[Path]) -> Path:
    """The file, or the folder of the package, that `module:Class` is found in.

    `folders` come before Python's own path. Raises InputError where there is none.
    """
    top = name.partition(":")[0].partition(".")[0]
    for folder in (*map(str, folders), *sys.path):
        found = importlib.machinery.PathFinder.find_spec(top, [folder or "."])
        if found is None or found.origin is None or not found.has_location:
            continue
        origin = Path(found.origin).absolute()
        return origin.parent if found.submodule_search_locations else origin
    looked = ", ".join(str(folder) for folder in folders)
    raise InputError(
        f"model {name}", None, f"no module {top} in {looked} or on PYTHONPATH", _ALLOWED
    )


def source_digest(source: Path) -> str:
    """A digest of the one file, or of all Python files of the package."""
    paths = [source] if source.is_file() else sorted(source.rglob("*.py"))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(source.parent).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def torch_import_s(name: str) -> float | None:
    """Seconds that importing the model's module took, if it imported torch; else None."""
    return _torch_s.get(name.partition(":")[0])


_torch_s: dict[str, float] = {}


def _build(model: OwnModel, source: Path) -> Model:
    """An instance of the user's class with these settings."""
    where = f"model {model.name}"
    cls = _class(model.name, source, where)
    settings = dict(model.model_extra or {})
    allowed = sorted(cls.model_fields.keys() - {"name"})
    for key in settings:
        if key not in allowed:
            raise InputError(where, key, "an unknown key", ", ".join(allowed) or "no settings")
    try:
        return cls.model_validate(settings | {"name": model.name})
    except ValidationError as error:
        raise input_error(error, where, cls) from None


def _class(name: str, source: Path, where: str) -> type[Model]:
    module_name, _, attribute = name.partition(":")
    module = _import(module_name, source, where)
    found = getattr(module, attribute, None)
    if found is None:
        raise InputError(where, None, f"no {attribute} in {source}", _classes(module) or _ALLOWED)
    if not (isinstance(found, type) and issubclass(found, Model)):
        kind = "a class" if isinstance(found, type) else f"a {type(found).__name__}"
        raise InputError(where, None, f"{attribute} is {kind} that is no gnnhpc.Model", _ALLOWED)
    for method in ("outline", "build"):
        if getattr(found, method) is getattr(Model, method):
            raise InputError(where, None, f"{attribute} without {method}", "both outline and build")
    return found


def _import(name: str, source: Path, where: str) -> ModuleType:
    top = name.partition(".")[0]
    known, digest = sys.modules.get(top), source_digest(source)
    if known is not None and top in _loaded_digests:
        # Two folders may have the same sources, and a notebook may plan a file, edit it, and plan
        # it again.
        if _loaded_digests[top] != digest:
            _forget(top)
            known = None
    elif known is not None and _origin(known) != source:
        found = f"{source}, but {top} is {_origin(known)} already"
        raise InputError(where, None, found, "another file name")
    # Last in the path, so that it hides no installed module; the file can import files beside it.
    if str(source.parent) not in sys.path:
        sys.path.append(str(source.parent))
    had_torch, began = "torch" in sys.modules, time.perf_counter()
    try:
        if known is None:
            _load_top(top, source)
            _loaded_digests[top] = digest
        module = importlib.import_module(name)
    except InputError:
        raise
    except Exception as error:
        _forget(top)
        found = f"{source} cannot be imported ({_error_text(error)})"
        raise InputError(where, None, found, _ALLOWED) from error
    if not had_torch and "torch" in sys.modules:
        _torch_s[name] = time.perf_counter() - began
    return module


_loaded_digests: dict[str, str] = {}
"""Digests of the users' modules that were imported here, by name."""


def _forget(top: str) -> None:
    for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
        del sys.modules[name]


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _load_top(top: str, source: Path) -> None:
    """Import this file or package, even if Python's path has another module of its name."""
    spec = importlib.machinery.PathFinder.find_spec(top, [str(source.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[top] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[top]
        raise


def _origin(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    return path.parent if hasattr(module, "__path__") else path


def _classes(module: ModuleType) -> str:
    found: Iterable[str] = (
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Model) and value is not Model
    )
    return ", ".join(sorted(found))
