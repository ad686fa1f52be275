"""Event files that TensorBoard reads: a folder a cell, with its settings as hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.foreign.exported_cells import ExportedCell
from analysis.render.output_folder import atomic_output_folder


def write_tensorboard(cells: Sequence[ExportedCell], out: Path) -> None:
    """Write OUT/<cell>/events...; a cell's earlier export in `out` is replaced.

    Raises ImportError without TensorBoard, and as `atomic_output_folder` does.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    with atomic_output_folder(out) as folder:
        for cell in cells:
            writer = EventFileWriter(str(folder / cell.cell))
            began = cell.scalars[0].at if cell.scalars else 0.0
            settings = hparams_pb(cell.settings, trial_id=cell.cell, start_time_secs=began)
            writer.add_event(Event(wall_time=began, step=0, summary=settings))
            for one in cell.scalars:
                value = Summary.Value(tag=one.name, simple_value=one.value)
                writer.add_event(
                    Event(wall_time=one.at, step=one.step, summary=Summary(value=[value]))
                )
            writer.close()
