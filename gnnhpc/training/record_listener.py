"""Writes the records of steps as the loop reports them."""

from __future__ import annotations

from gnnhpc.records.record_writer import RecordWriter
from gnnhpc.records.schema import SpanRecord
from gnnhpc.training.events import Listener, StepTaken


class RecordsSteps(Listener):
    """Writes each step's record, and its spans where the experiment asks for them."""

    def __init__(self, writer: RecordWriter, *, spans: bool) -> None:
        self._writer, self._spans = writer, spans

    def step_taken(self, taken: StepTaken) -> None:
        spans = taken.spans if self._spans else []
        self._writer.write(
            taken.record,
            *(
                SpanRecord(
                    *(taken.phase, taken.step, each.name, each.microbatch),
                    *(each.start_s, each.end_s, each.virtual_stage),
                )
                for each in spans
            ),
        )
