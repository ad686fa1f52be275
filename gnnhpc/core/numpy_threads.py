"""How many threads numpy computes with, in processes that measure."""

from __future__ import annotations

import os


def keep_numpy_to_one_thread() -> None:
    """To be called before numpy is imported; a number that is set already stays.

    numpy only checks here, and its OpenBLAS would have a thread for each processor: these look for
    work for tens of milliseconds after a product, on processors where steps are timed by then.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
