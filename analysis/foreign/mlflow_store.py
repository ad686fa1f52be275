"""A store of MLflow's: an experiment a run folder, and in it a run a cell.

`mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db` shows it. MLflow 3 refuses stores of plain
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from analysis.foreign.exported_cells import ExportedCell
from gnnhpc.core.errors import InputError

Item = TypeVar("Item")

_MOST_METRICS, _MOST_PARAMETERS = 1000, 100
"""Of one call, as MLflow's REST interface has them."""


def write_mlflow(cells: Sequence[ExportedCell], name: str, out: Path) -> None:
    """Add the experiment `name` to OUT/mlflow.db, which is made if it is not there.

    Raises ImportError without MLflow, InputError if the store has one of this name.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    out.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{out.absolute()}/mlflow.db")
    if client.get_experiment_by_name(name) is not None:
        raise InputError("--out", None, f"{out}, with an experiment {name}", "another folder")
    experiment = client.create_experiment(name, (out.absolute() / "artifacts").as_uri())
    for cell in cells:
        times = [round(one.at * 1000) for one in cell.scalars]
        run = client.create_run(
            experiment, start_time=min(times, default=0), run_name=cell.cell
        ).info.run_id
        tags = [RunTag("gnnhpc.cell", cell.cell), RunTag("gnnhpc.flags", cell.flags)]
        client.log_batch(run, tags=tags)
        parameters = [Param(key, str(value)) for key, value in cell.settings.items()]
        for some in _parts(parameters, _MOST_PARAMETERS):
            client.log_batch(run, params=some)
        metrics = [
            Metric(name_in_mlflow(one.name), one.value, at, one.step)
            for one, at in zip(cell.scalars, times, strict=True)
        ]
        for part in _parts(metrics, _MOST_METRICS):
            client.log_batch(run, metrics=part)
        client.set_terminated(run, end_time=max(times, default=0))


def name_in_mlflow(name: str) -> str:
    """Of a metric: MLflow refuses the `@` of `hits@10`, which is `hits_at_10` there."""
    return name.replace("@", "_at_")


def _parts(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    return (items[begin : begin + most] for begin in range(0, len(items), most))
