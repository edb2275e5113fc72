"""Uncalibrated predictions and the published values, and possible reasons for differences.

Every exponent is for the counts, batches, precision and limits of the example ``mit-2022-all``; the
published ranges of N are not known. Nothing is measured or random: the numbers depend only on files
of this repository. The second table changes two numbers, the same for all models: the bandwidth of
the storage, and the time that an epoch takes in addition to its steps. Run with
``make bench-simulator``; ``docs/simulation-model.md`` has the tables, which a test compares.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.power_law import fit_power_law
from wattlaw.launch.simulated.machine import Machine
from wattlaw.reference.published import Published, published
from wattlaw.simulator.job import SimulatedJob, Window
from wattlaw.simulator.predict import predict
from wattlaw.study.model import RunSpec
from wattlaw.study.plan import expand, read_study

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EXAMPLES = ROOT / "src" / "wattlaw" / "examples"
Change = Callable[[SimulatedJob], SimulatedJob]


@dataclass(frozen=True)
class Study:
    """The settings of a study's file, and the machine on which it is simulated."""

    machine: Machine
    specs: list[RunSpec]

    @classmethod
    def of(cls, name: str, hardware: str) -> "Study":
        """Return the first repeat of an example's study."""
        study = read_study(EXAMPLES / f"{name}.yaml")
        simulation = study.launch.simulation.model_copy(update={"hardware": hardware})
        launch = study.launch.model_copy(update={"simulation": simulation})
        machine = Machine.from_launch(launch)
        changes = {"kind": "simulated", "gpus_per_node": machine.gpus_per_node}
        study = study.model_copy(update={"launch": launch.model_copy(update=changes)})
        specs = [run.spec for run in expand(study) if run.spec.repeat == 0]
        return cls(machine, specs)

    def times(self, change: Change, **selected: object) -> pd.Series:
        """Return seconds per epoch by GPU count, of the matching settings."""
        times_s = {}
        for spec in self.specs:
            fields = spec.setting.model_dump() | {"workload": spec.workload.name}
            if all(fields[key] == value for key, value in selected.items()):
                job = self.machine.job(spec)
                times_s[spec.setting.gpus] = predict(change(job)).train.duration_s
        return pd.Series(times_s).sort_index()


@cache
def mit() -> Study:
    """Return the study that varied caps and clocks."""
    return Study.of("mit-2022-all", "mit-v100")


def beta(times: pd.Series) -> float:
    """Return the exponent of t = alpha N^-beta."""
    return fit_power_law(times.index.to_numpy(), times.to_numpy()).beta


def main() -> None:
    """Predict, print the tables, and write them as JSON."""
    tables = {"exponents": exponents(), "explained": exponents_with_changes(), "energy": energies()}
    for name, table in tables.items():
        print(f"\n{name}\n\n{markdown(table)}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"published-{datetime.now(UTC):%Y-%m}.json"
    content = {name: table.to_dict("records") for name, table in tables.items()}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def exponents() -> pd.DataFrame:
    """Return each published exponent with the predicted one."""
    study = mit()
    rows = []
    for value in betas():
        times = study.times(
            lambda job: job,
            workload=value.workload,
            power_limit_w=value.power_limit_w,
            clock_limit_mhz=value.clock_limit_mhz,
        )
        predicted = beta(times)
        rows.append(
            {
                "model": value.model,
                "limit": limit_of(value),
                "published": value.value,
                "predicted": round(predicted, 2),
                "error": round(predicted - value.value, 2),
                "to 64 GPUs": round(beta(times[times.index <= 64]), 2),
            }
        )
    return pd.DataFrame(rows)


def exponents_with_changes() -> pd.DataFrame:
    """Return the exponents with another storage bandwidth or fixed time per epoch."""
    study = mit()
    rows = []
    for value in betas():
        row = {"model": value.model, "limit": limit_of(value), "published": value.value}
        for name, change in changes():
            times = study.times(
                change,
                workload=value.workload,
                power_limit_w=value.power_limit_w,
                clock_limit_mhz=value.clock_limit_mhz,
            )
            row[name] = round(beta(times), 2)
        rows.append(row)
    return pd.DataFrame(rows)


def changes() -> Iterator[tuple[str, Change]]:
    """Yield the changes of the second table: a name and a function that changes a job."""

    def change_of(storage_gb_s: float | None, edges_s: float | None) -> Change:
        def change(job: SimulatedJob) -> SimulatedJob:
            cluster, parameters = job.cluster, job.parameters
            if storage_gb_s is not None:
                cluster = cluster.model_copy(update={"storage_gb_s": storage_gb_s})
            if edges_s is not None:
                parameters = replace(parameters, epoch_ms=1000 * edges_s)
            return replace(job, cluster=cluster, parameters=parameters)

        return change

    yield "as assumed", change_of(None, None)
    yield "storage 3 GB/s", change_of(3.0, None)
    yield "storage 20 GB/s", change_of(20.0, None)
    yield "0.5 s per epoch", change_of(None, 0.5)
    yield "1 s per epoch", change_of(None, 1.0)


def energies() -> pd.DataFrame:
    """Return time and energy at 200 W and 100 W relative to no cap, at 2 and 128 GPUs."""
    study = mit()
    rows = []
    for name in dict.fromkeys(spec.workload.name for spec in study.specs):
        for gpus in (2, 128):
            row: dict[str, object] = {"workload": name, "GPUs": gpus}
            uncapped = window(study, name, gpus, None)
            row["W per GPU"] = round(uncapped.gpu_power_w)
            for cap in (200.0, 100.0):
                capped = window(study, name, gpus, cap)
                row[f"time at {cap:g} W"] = round(capped.duration_s / uncapped.duration_s, 3)
                row[f"energy at {cap:g} W"] = round(capped.gpu_energy_j / uncapped.gpu_energy_j, 3)
            rows.append(row)
    return pd.DataFrame(rows)


def window(study: Study, workload: str, gpus: int, cap: float | None) -> Window:
    """Return the training window of a setting."""
    spec = next(
        s for s in study.specs
        if s.workload.name == workload and s.setting.gpus == gpus
        and s.setting.power_limit_w == cap and s.setting.clock_limit_mhz is None
    )  # fmt: skip
    return predict(study.machine.job(spec)).train


def betas() -> list[Published]:
    """Return the published exponents of the study that varied caps and clocks."""
    return list(published("mit-2022", "beta"))


def limit_of(value: Published) -> str:
    """Return a limit as text."""
    if value.power_limit_w:
        return f"{value.power_limit_w:g} W"
    return f"{value.clock_limit_mhz:g} MHz" if value.clock_limit_mhz else "none"


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    rows = [table.columns.tolist(), ["---"] * len(table.columns)]
    rows += [[cell(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def cell(value: object) -> str:
    """Return a cell of a table as text."""
    return (
        f"{value:.3f}".rstrip("0").rstrip(".")
        if isinstance(value, float | np.floating)
        else str(value)
    )


if __name__ == "__main__":
    main()
