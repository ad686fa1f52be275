"""The sweeps that come with the package, found by their bare names: `submit quickstart`."""

from __future__ import annotations

from pathlib import Path

from gnnhpc.core.errors import InputError

FOLDER = Path(__file__).parents[1] / "sweeps"


def find_spec(spec: Path) -> Path:
    """The spec itself, or the shipped one where `spec` is a bare name and no file.

    Raises InputError for a bare name that is neither.
    """
    if spec.is_file() or spec.suffix or len(spec.parts) != 1:
        return spec
    shipped = {path.stem: path for path in FOLDER.glob("*.yaml")}
    if spec.name not in shipped:
        if spec.exists():
            return spec
        allowed = f"a sweep spec's path, or one of {', '.join(sorted(shipped))}"
        raise InputError(spec, None, "no such file, and no sweep of this name", allowed)
    return shipped[spec.name]
