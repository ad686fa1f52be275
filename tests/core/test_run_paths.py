"""Attempts that no two claim; files that are whole or absent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import write_atomically


def test_attempts_are_numbered_from_one_though_many_claim_at_once(tmp_path: Path) -> None:
    cell = RunPaths(tmp_path).cell("some")
    assert cell.attempts() == []
    with ThreadPoolExecutor(8) as pool:
        claimed = pool.map(lambda _: cell.claim_attempt().number, range(100))
    numbers = sorted(claimed)
    assert numbers == list(range(1, 101))
    (cell.root / "attempt-0").mkdir()
    (cell.root / "attempt-102.bak").mkdir()
    assert [attempt.number for attempt in cell.attempts()] == numbers
    (cell.root / "attempt-140").mkdir()
    assert cell.claim_attempt().number == 141


def test_readers_see_all_of_a_file_or_none(tmp_path: Path) -> None:
    """Writers with one process id, as two nodes may have that share the folder."""
    path = tmp_path / "status.json"
    texts = ["größe " * 5000, "other " * 5000]

    def write_many(text: str) -> None:
        for _ in range(100):
            write_atomically(path, text)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write_many, text) for text in texts]
        seen = set()
        while wait(writers, timeout=0.001).not_done:
            seen |= {path.read_text("utf-8")} if path.exists() else set()
        for writer in writers:
            writer.result()
    assert seen <= set(texts)
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]
