"""One simulated run from its record to its tables: limits, prediction, windows, samples."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from wattlaw import machine as this_machine
from wattlaw.devices.simulated_gpus import NAME, SimulatedGpus
from wattlaw.errors import WattlawError
from wattlaw.files import write_parquet
from wattlaw.launch.launcher import Ended
from wattlaw.launch.limits import requested_limits
from wattlaw.launch.simulated.machine import Machine
from wattlaw.launch.simulated.samples import MAX_SAMPLES, Sampling, telemetry_table
from wattlaw.launch.simulated.windows import PROGRESS, Windows, epochs_table, windows_of
from wattlaw.limits.requests import Limits, check_range, report_applied_limits
from wattlaw.simulator.job import Prediction
from wattlaw.simulator.predict import predict
from wattlaw.store.record import (
    DeviceReport,
    Facts,
    LimitReport,
    MeterReport,
    RunRecord,
    SamplerReport,
    now,
)
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec

FAILURE = "simulated failure (launch.simulation.fail_share)"
#: Drawn for different things of one run.
_WINDOWS, _SAMPLES, _FAILS = range(3)


def simulate(machine: Machine, record: RunRecord, path: Path) -> Ended:
    """Simulate an attempt at a run, and put its tables, its record and its log in their place.

    Parameters
    ----------
    machine
        What it is simulated on.
    record
        The run as it is under way.
    path
        Its folder.

    Returns
    -------
    Ended
        With the record as done, or why there is none.
    """
    folder, share = RunFolder(path), machine.simulation.fail_share
    if share and _draw(machine, record, _FAILS, record.attempts).random() < share:
        _log(folder, record, [FAILURE])
        return Ended(FAILURE)
    try:
        done = _done(machine, record, folder)
    except WattlawError as error:
        _log(folder, record, [str(error)])
        return Ended(str(error))
    folder.write(done, durable=False)
    folder.remove_live_files()
    return Ended(record=done)


def _done(machine: Machine, record: RunRecord, folder: RunFolder) -> RunRecord:
    spec = record.spec
    host, told = machine.host(spec), machine.reported_boards(spec.setting.gpus)
    boards = SimulatedGpus(machine.cluster.gpu, told)
    with limited(boards, requested_limits(spec.setting)) as reports:
        first = reports[0] if reports else None
        job = machine.job(
            spec,
            first.power_limit_enforced_w if first and first.power_limit_w is not None else None,
            boards.clock_lock_mhz(told[0]),
        )
        prediction = predict(job)
    windows = windows_of(prediction, spec.measure, _draw(machine, record, _WINDOWS))
    draw = _draw(machine, record, _SAMPLES)
    sampling = Sampling.of(windows, spec.measure.sample_hz, len(told), draw)
    telemetry = telemetry_table(windows, sampling, record.run_id, host, told, draw)
    epochs = epochs_table(windows, record.run_id, host, spec.measure, machine.simulation)
    write_parquet(folder.telemetry_path, telemetry, durable=False)
    write_parquet(folder.epochs_path, epochs, durable=False)
    _log(folder, record, _words(machine, prediction, windows))
    return record.model_copy(
        update={
            "status": "done",
            "finished_at": now(),
            "reason": None,
            "notes": (*record.notes, *_notes(machine, spec, sampling), *prediction.warnings),
            "facts": _facts(machine, spec, prediction, host, told),
            "samplers": (_sampler(machine, sampling, host, told),),
            "limits": tuple(one.model_copy(update={"host": host}) for one in reports),
        }
    )


@contextlib.contextmanager
def limited(boards: SimulatedGpus, limits: Limits) -> Iterator[tuple[LimitReport, ...]]:
    """Limit boards while a block lasts, with the checks of real ones; give what was set.

    Raises
    ------
    NotAvailable
        A limit is outside their range.
    """
    if limits.are_none:
        yield ()
        return
    before = {device: boards.read(device) for device in boards.devices()}
    try:
        for device, state in before.items():
            check_range(state, limits)
            if limits.power_limit_w is not None:
                boards.set_power_limit(device, limits.power_limit_w)
            if limits.clock_limit_mhz is not None:
                boards.lock_clock(device, limits.clock_limit_mhz)
        yield tuple(report_applied_limits(state, limits, NAME, boards) for state in before.values())
    finally:
        for device, state in before.items():
            boards.unlock_clock(device)
            if state.power_limit_w is not None:
                boards.set_power_limit(device, state.power_limit_w)


def _draw(machine: Machine, record: RunRecord, what: int, *more: int) -> np.random.Generator:
    """Return the numbers of a run: the same for the same seed and the same run, wherever."""
    entropy = (machine.simulation.seed, int(record.run_id, 16), record.spec.repeat)
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(what, *more)))


def _notes(machine: Machine, spec: RunSpec, sampling: Sampling) -> Iterator[str]:
    # The same words for all runs, so that a report counts them; numbers are in ``samplers``.
    yield f"simulated, {machine.calibration_label}: nothing was measured"
    gpus = spec.setting.gpus
    if sampling.is_thinned or len(machine.reported_boards(gpus)) < gpus:
        yield (
            f"simulated telemetry is thinned to at most {MAX_SAMPLES:,} samples of a run's first, "
            "last and two more boards"
        )


def _facts(
    machine: Machine, spec: RunSpec, prediction: Prediction, host: str, told: Sequence[str]
) -> Facts:
    profile = prediction.job.profile
    return Facts(
        hosts=(host,),
        hardware=spec.hardware,
        device_ids=tuple(told),
        parameters=profile.parameters,
        gradient_bytes=profile.gradient_bytes,
        flops_per_sample=profile.flops_per_sample,
        loader_workers=spec.train.loader_workers,
        metric=PROGRESS if machine.simulation.critical_batch is not None else None,
        software=_software() | {"simulator": machine.calibration_label},
    )


@cache
def _software() -> dict[str, str]:
    return this_machine.software(("wattlaw", "numpy"))


def _sampler(machine: Machine, sampling: Sampling, host: str, told: Sequence[str]) -> SamplerReport:
    """Return what would be the sampler's report; it took no time, as there was none to sample."""
    name = f"{machine.cluster.gpu.name}, simulated"
    return SamplerReport(
        host=host,
        samples=sampling.kept * len(told),
        duration_s=0.0,
        cpu_s=0.0,
        start_cpu_s=0.0,
        devices=tuple(
            DeviceReport(id=one, kind="gpu", name=name, facts={"power": "simulated"})
            for one in told
        ),
        meters={
            "simulated": MeterReport(
                period_s=1 / sampling.sample_hz,
                reads=sampling.kept,
                missed=sampling.readings - sampling.kept,
                late_s=0.0,
            )
        },
    )


def _words(machine: Machine, prediction: Prediction, windows: Windows) -> Iterator[str]:
    split, train = prediction.split, prediction.train
    yield f"on {machine.label}: nothing was measured"
    yield (
        f"a step takes {split.step_s:.4g} s: {split.compute_s:.4g} s of kernels, "
        f"{split.launch_s:.4g} s for the host, {split.communication_s:.4g} s of exchange, "
        f"{split.slowest_s:.4g} s for the slowest rank, {split.input_s:.4g} s for samples"
    )
    yield f"an epoch takes {train.duration_s:.5g} s; each GPU draws {train.gpu_power_w:.4g} W"
    yield f"the whole run takes {windows.end_s:.5g} s of simulated time"
    yield from prediction.warnings


def _log(folder: RunFolder, record: RunRecord, lines: Iterable[str]) -> None:
    with folder.log_path.open("a", encoding="utf-8") as log:
        log.write(f"\n== attempt {record.attempts}, {now():%Y-%m-%d %H:%M:%S} UTC\n")
        log.writelines(f"{line}\n" for line in lines)
