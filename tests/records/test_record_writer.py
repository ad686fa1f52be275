"""A rank's file: whole lines at once, and one clear line where the disk refuses them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gnnhpc.records.record_writer import RecordWriter
from gnnhpc.records.schema import EventRecord, SpanRecord, read_lines
from tests.records.test_schema import HEADER


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
