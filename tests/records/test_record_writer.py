"""A rank's file: whole lines at once, and one clear line where the disk refuses them."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.records.record_writer import RecordWriter
from gnnhpc.records.schema import EventRecord, SpanRecord, read_lines
from tests.records.test_schema import HEADER

FILL = """
import sys
from pathlib import Path
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.records.record_writer import RecordWriter
from gnnhpc.records.schema import EventRecord
from tests.records.test_schema import HEADER
writer = RecordWriter(Path(sys.argv[1]), HEADER)
try:
    for n in range(10_000):
        writer.write(EventRecord("event", n / 3))
except GnnhpcError as error:
    print(n, error)
"""


def test_lines_are_there_as_soon_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "rank-0000.jsonl"
    with contextlib.closing(RecordWriter(path, HEADER)) as writer:
        assert len(read_lines(path)) == 1
        writer.write(
            SpanRecord("train", 0, "forward", 1, 0.1234567891234, 2.0),
            EventRecord("checkpoint", 0.5, {"step": 3}),
        )
        _, span, event = read_lines(path)
    assert span["start_s"] == 0.123456789, "to the nanosecond"
    assert event["detail"] == {"step": 3}


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "rank-0000.jsonl"
    path.write_text("measured\n")
    with pytest.raises(GnnhpcError) as failed:
        RecordWriter(path, HEADER)
    assert str(failed.value) == f"{path}: cannot be written (File exists)"
    assert path.read_text() == "measured\n"


def test_a_full_disk_is_one_line_and_what_was_written_stays(tmp_path: Path) -> None:
    """A file may grow to 4 KiB here; the write across that border is cut short."""
    path = tmp_path / "rank-0000.jsonl"

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    filled = subprocess.run(
        [sys.executable, "-c", FILL, path],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        check=True,
    )
    written, _, error = filled.stdout.strip().partition(" ")
    assert error == f"{path}: cannot be written (File too large)"
    assert len(read_lines(path)) == 1 + int(written)
