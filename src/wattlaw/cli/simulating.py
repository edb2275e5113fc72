"""``simulate``: what settings would take, before there is anything to run them on."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from wattlaw.cli.given import counts, json_object, limits
from wattlaw.errors import BadInput
from wattlaw.launch.simulated.simulation_inputs import (
    alike,
    calibrated_as,
    job_of,
    workload_key,
    workload_spec,
)
from wattlaw.simulator.job import SimulatedJob
from wattlaw.simulator.library import read_cluster
from wattlaw.simulator.predict import predict
from wattlaw.simulator.what_if import Intervals, Target, add_scaling, prediction_row
from wattlaw.study.base import MAX_COUNT, Precision
from wattlaw.study.model import Measure, RunSpec, Setting, Train
from wattlaw.workloads import catalogue

if TYPE_CHECKING:
    from wattlaw.simulator.calibration import Calibration

#: Text and JSON tables of more settings than these would tell nobody anything.
_MOST_SETTINGS = 10_000
_MOST_SAMPLES = 10**15
_LEAST_TARGET = 1e-9
#: As ``store.tables.KINDS``, whose import takes longer than a simulation.
_KINDS = (".csv", ".parquet", ".jsonl")


@dataclass(frozen=True)
class Asked:
    """The options of the command, as they are given."""

    workload: str | None
    hardware: str | None
    options: str | None
    profile: Path | None
    samples: int | None
    gpus: str
    gpus_per_node: int | None
    local_batch: int | None
    global_batch: int | None
    power_limit: str | None
    clock_limit: str | None
    precision: str
    dataset_fraction: float
    epochs: int
    gradient_accumulation: int
    target_epochs: float | None
    critical_batch: float | None
    calibration: Path | None
    measured_as: str | None


@dataclass(frozen=True)
class Calibrated:
    """A calibration, and which of its workloads the simulated one is."""

    calibration: "Calibration"
    key: str

    def applied(self, job: SimulatedJob) -> SimulatedJob:
        """Return a job with its parameters and the workload's factor."""
        from wattlaw.simulator.calibration import apply_calibration

        return apply_calibration(job, self.calibration, self.key)

    def intervals(self, job: SimulatedJob) -> Intervals:
        """Return 95 % intervals of a job's prediction."""
        from wattlaw.simulator.calibration import prediction_intervals

        found = prediction_intervals(job, self.calibration, self.key)
        return {name: (one.low, one.high) for name, one in found.items()}


def simulate(asked: Asked, output: Path | None, *, raw: bool = False, as_json: bool) -> int:
    """Print what each setting takes; return 1 if some of them cannot be.

    Raises
    ------
    BadInput
        An option cannot be, or none of the settings can.
    """
    _check(asked)
    if output is not None and output.suffix.lower() not in _KINDS:
        listed = ", ".join(_KINDS)
        raise BadInput(f"{output}: unknown ending {output.suffix!r}; allowed: {listed}")
    target = _target(asked)
    first, made_by = _first_job(asked)
    settings = list(_settings(asked, first))
    rows, refused = [], []
    for job in settings:
        try:
            rows.append(_row(job, asked.epochs, target, made_by))
        except BadInput as error:
            refused.append(str(error) if len(settings) == 1 else f"{_named(job)}: {error}")
    if len(settings) == 1 and refused:
        raise BadInput(refused[0])
    for why in refused:
        print(f"wattlaw: left out: {why}", file=sys.stderr)
    if not rows:
        raise BadInput(f"simulate: none of the {len(settings)} settings can be simulated")
    rows = add_scaling(rows)
    if output is not None:
        _write(output, rows, raw=raw)
    if as_json:
        print(json.dumps(rows, allow_nan=False))
    else:
        from wattlaw.cli.simulated_words import show

        show(rows, first, made_by)
    return 1 if refused else 0


def _check(asked: Asked) -> None:
    allowed = {
        "--samples": (asked.samples, _MOST_SAMPLES),
        "--gpus-per-node": (asked.gpus_per_node, MAX_COUNT),
        "--local-batch": (asked.local_batch, MAX_COUNT),
        "--global-batch": (asked.global_batch, MAX_COUNT),
        "--epochs": (asked.epochs, 100_000),
        "--gradient-accumulation": (asked.gradient_accumulation, 100_000),
    }
    for option, (given, most) in allowed.items():
        if given is not None and not 1 <= given <= most:
            raise BadInput(f"{option}: given {given}; allowed: a whole number from 1 to {most:,}")
    if (asked.local_batch is None) == (asked.global_batch is None):
        told = "neither" if asked.local_batch is None else "both"
        raise BadInput(
            f"simulate: given {told} of --local-batch and --global-batch; allowed: one of them"
        )
    if not 0 < asked.dataset_fraction <= 1:
        raise BadInput(
            f"--dataset-fraction: given {asked.dataset_fraction:g}; allowed: a number > 0 and <= 1"
        )
    if asked.precision not in get_args(Precision):
        listed = ", ".join(get_args(Precision))
        raise BadInput(f"--precision: given {asked.precision!r:.40}; allowed: {listed}")
    if asked.measured_as is not None and asked.calibration is None:
        raise BadInput("--as: given without --calibration; allowed: with it")


def _target(asked: Asked) -> Target | None:
    least, critical = asked.target_epochs, asked.critical_batch
    if least is None and critical is None:
        return None
    if least is None or critical is None:
        raise BadInput(
            "simulate: given one of --target-epochs and --critical-batch; allowed: both or neither"
        )
    for option, given in (("--target-epochs", least), ("--critical-batch", critical)):
        if not _LEAST_TARGET <= given <= 1 / _LEAST_TARGET:
            raise BadInput(f"{option}: given {given:g}; allowed: a number > 0, at most 1e9")
    return Target(least, critical)


def _first_job(asked: Asked) -> tuple[SimulatedJob, Calibrated | None]:
    """Return what all settings share, as a job of one GPU and one sample, and the calibration."""
    if asked.hardware is None:
        raise BadInput("--hardware: given nothing; allowed: a name of --list-hardware, or a file")
    cluster = read_cluster(asked.hardware)
    has = cluster.node.gpus
    if asked.gpus_per_node is not None and asked.gpus_per_node > has:
        raise BadInput(
            f"--gpus-per-node: given {asked.gpus_per_node}; allowed: 1 to {has}, as {cluster.name} "
            "has"
        )
    profile = None if asked.profile is None else catalogue.read_profile(asked.profile)
    name = asked.workload or (profile.workload if profile else None)
    if name is None:
        raise BadInput("--workload: given nothing; allowed: a name of 'wattlaw workloads'")
    if profile is not None and name != profile.workload:
        raise BadInput(f"--workload: given {name!r:.80}; {asked.profile} is of {profile.workload}")
    if profile is None or asked.samples is None:
        catalogue.entry(name)  # a name that there is fits a specification
    options = None if asked.options is None else json_object("--options", asked.options)
    if options is None and profile is not None:
        options = profile.options
    spec = RunSpec(
        workload=workload_spec(name, options or {}),
        setting=Setting(
            gpus=1,
            precision=asked.precision,  # type: ignore[arg-type]  # it was checked
            dataset_fraction=asked.dataset_fraction,
        ),
        repeat=0,
        measure=Measure(),
        train=Train(gradient_accumulation=asked.gradient_accumulation),
        launch_kind="simulated",
    )
    try:
        job = job_of(
            spec, cluster,
            gpus_per_node=asked.gpus_per_node, profile=profile, samples=asked.samples,
        )  # fmt: skip
    except BadInput as error:
        raise BadInput(f"simulate: {error}") from None
    if asked.calibration is None:
        return job, None
    from wattlaw.simulator.calibration_file import read_calibration

    calibration = read_calibration(asked.calibration, cluster.gpu)
    made_by = Calibrated(calibration, _key(calibration, workload_key(job.profile), asked))
    return made_by.applied(job), made_by


def _key(calibration: "Calibration", key: str, asked: Asked) -> str:
    """Return which of a calibration's workloads this is; where it cannot be told, it is said."""
    known = calibration.work_factors
    if asked.measured_as is not None:
        if asked.measured_as not in known:
            listed = "; ".join(known)
            raise BadInput(f"--as: given {asked.measured_as!r:.80}; allowed: {listed}")
        return asked.measured_as
    found = calibrated_as(calibration, key)
    if found not in known:
        several = alike(calibration, key)
        why = (
            f"several of it are of {key}: {'; '.join(several)} (choose with --as)"
            if several
            else f"it has not measured {key}, but {'; '.join(known)} (one can be chosen with --as)"
        )
        print(f"wattlaw: {asked.calibration}: no factor of work is used: {why}", file=sys.stderr)
    return found


def _settings(asked: Asked, first: SimulatedJob) -> Iterator[SimulatedJob]:
    """Yield a job for each setting, possible or not."""
    gpus = sorted(counts("--gpus", asked.gpus, MAX_COUNT))
    powers = limits("--power-limit", asked.power_limit)
    clocks = limits("--clock-limit", asked.clock_limit)
    count = len(gpus) * len(powers) * len(clocks)
    if count > _MOST_SETTINGS:
        raise BadInput(f"simulate: {count:,} settings; allowed: {_MOST_SETTINGS:,}")
    for power_w in powers:
        for clock_mhz in clocks:
            for number in gpus:
                # A batch that cannot be divided is 0 each, which no job can have.
                whole, rest = divmod(asked.global_batch or 0, number)
                yield replace(
                    first,
                    gpus=number,
                    local_batch=asked.local_batch or (0 if rest else whole),
                    power_limit_w=power_w,
                    clock_limit_mhz=clock_mhz,
                )


def _row(
    job: SimulatedJob, epochs: int, target: Target | None, made_by: Calibrated | None
) -> dict[str, Any]:
    if not job.local_batch:
        raise BadInput("--global-batch: cannot be divided by so many GPUs; allowed: a multiple")
    told = None if made_by is None else made_by.intervals(job)
    row = prediction_row(predict(job), epochs, target, told)
    how = "uncalibrated" if made_by is None else f"calibrated {made_by.calibration.digest}"
    return {"simulated": True, "calibration": how, **row}


def _named(job: SimulatedJob) -> str:
    words = [f"{job.gpus:,} GPU{'s' * (job.gpus > 1)}"]
    given = {"W": job.power_limit_w, "MHz": job.clock_limit_mhz}
    words += [f"{value:g} {unit}" for unit, value in given.items() if value is not None]
    return ", ".join(words)


def _write(output: Path, rows: list[dict[str, Any]], *, raw: bool) -> None:
    """Write rows as a table; what is nested is JSON in it."""
    import pyarrow as pa

    from wattlaw.store.tables import write_table

    flat = [
        {
            name: json.dumps(value) if isinstance(value, dict | list) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    write_table(output, pa.Table.from_pylist(flat), raw=raw)
