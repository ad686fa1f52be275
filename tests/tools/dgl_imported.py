"""Imports DGL where it is installed, for processes that ranks are forked from."""

from __future__ import annotations

import contextlib

from gnnhpc.core.errors import InputError
from gnnhpc.models.libraries import import_dgl

with contextlib.suppress(InputError):
    import_dgl()
