"""The simulation of a run: limits, prediction, windows, samples."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from wattlaw.common import machine as this_machine
from wattlaw.common.errors import WattlawError
from wattlaw.common.files import write_parquet
from wattlaw.measure.limits.requests import check_range
from wattlaw.running.launcher import Ended
from wattlaw.running.node_setup import log_head, requested_limits
from wattlaw.store import record as stored
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec
from wattlaw.workloads import catalogue
from wattlaw_simulator.launching import simulated_tables as tables
from wattlaw_simulator.launching.simulated_machine import Machine
from wattlaw_simulator.simulate_step import loader_processes, predict
from wattlaw_simulator.simulated_job import Prediction

FAILURE = "simulated failure (launch.simulation.fail_share)"
#: Streams of random numbers of a run.
_WINDOWS, _SAMPLES, _FAILS = range(3)


def simulate(machine: Machine, record: stored.RunRecord, path: Path) -> Ended:
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


def _done(machine: Machine, record: stored.RunRecord, folder: RunFolder) -> stored.RunRecord:
    spec = record.spec
    host, device_ids = machine.host(spec), machine.reported_boards(spec)
    reports = limit_reports(machine, spec)
    prediction = predict(machine.job(spec))
    windows = tables.windows_of(prediction, spec.measure, _draw(machine, record, _WINDOWS))
    draw = _draw(machine, record, _SAMPLES)
    sampling = tables.Sampling.of(windows, spec.measure.sample_hz, len(device_ids), draw)
    telemetry = tables.telemetry_table(windows, sampling, record.run_id, host, device_ids, draw)
    epochs = tables.epochs_table(windows, record.run_id, host, machine.simulation)
    write_parquet(folder.telemetry_path, telemetry, durable=False)
    write_parquet(folder.epochs_path, epochs, durable=False)
    _log(folder, record, _log_lines(machine, prediction, windows))
    profile = prediction.job.profile
    facts = stored.Facts(
        hosts=(host,),
        hardware=spec.hardware,
        device_ids=tuple(device_ids),
        parameters=profile.parameters,
        gradient_bytes=profile.gradient_bytes,
        flops_per_sample=profile.flops_per_sample,
        loader_workers=loader_processes(prediction.job),
        dataset_samples=prediction.job.samples,
        world_size=spec.setting.gpus,
        parallelism="ddp" if spec.setting.gpus > 1 else "none",
        workers_cooperate=True,
        network=getattr(catalogue.validated(spec.workload), "network", None),
        metric=tables.PROGRESS if machine.simulation.critical_batch is not None else None,
        software=_software(("wattlaw", "numpy")) | {"simulator": machine.cluster.calibration},
    )
    notes = (*record.notes, *_notes(machine, spec, sampling), *prediction.warnings)
    samplers = (_sampler(machine, sampling, host, device_ids),)
    changes = {"status": "done", "finished_at": stored.now(), "reason": None, "notes": notes}
    changes |= {"facts": facts, "samplers": samplers, "limits": reports}
    return record.model_copy(update=changes)


def limit_reports(machine: Machine, spec: RunSpec) -> tuple[stored.LimitReport, ...]:
    limits, states = requested_limits(spec.setting), machine.board_states(spec)
    if limits.are_none:
        return ()
    for state in states:
        check_range(state, limits)
    requested_w = limits.power_limit_w
    return tuple(
        stored.LimitReport(
            host=machine.host(spec),
            device=state.device,
            limiter="simulated",
            power_limit_w=requested_w,
            power_limit_enforced_w=state.enforced_w if requested_w is None else requested_w,
            power_limit_before_w=state.power_limit_w,
            clock_limit_mhz=limits.clock_limit_mhz,
        )
        for state in states
    )


def _draw(machine: Machine, record: stored.RunRecord, what: int, *more: int) -> np.random.Generator:
    """Return the random generator of a run, which depends on its seed and its id only."""
    entropy = (machine.simulation.seed, int(record.run_id, 16), record.spec.repeat)
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(what, *more)))


def _notes(machine: Machine, spec: RunSpec, sampling: tables.Sampling) -> Iterator[str]:
    # The same text for all runs, so that a report can count them; numbers are in ``samplers``.
    yield f"simulated, {machine.cluster.calibration}: nothing was measured"
    is_thinned = sampling.kept < sampling.readings
    if is_thinned or len(machine.reported_boards(spec)) < spec.setting.gpus:
        most = f"at most {tables.MAX_SAMPLES:,} samples of a run's first, last and two more boards"
        yield f"simulated telemetry is thinned to {most}"


_software = cache(this_machine.software)


def _sampler(
    machine: Machine, sampling: tables.Sampling, host: str, device_ids: Sequence[str]
) -> stored.SamplerReport:
    name, missed = f"{machine.cluster.gpu.name}, simulated", sampling.readings - sampling.kept
    period_s, about = 1 / sampling.sample_hz, {"power": "simulated"}
    meter = stored.MeterReport(period_s=period_s, reads=sampling.kept, missed=missed, late_s=0.0)
    devices = (
        stored.DeviceReport(id=each, kind="gpu", name=name, facts=about) for each in device_ids
    )
    return stored.SamplerReport(
        host=host, samples=sampling.kept * len(device_ids), duration_s=0.0, cpu_s=0.0,
        start_cpu_s=0.0, devices=tuple(devices), meters={"simulated": meter},
    )  # fmt: skip


def _log_lines(machine: Machine, prediction: Prediction, windows: tables.Windows) -> Iterator[str]:
    split, train = prediction.split, prediction.train
    yield f"on {machine.label}: nothing was measured"
    yield (
        f"a step takes {split.step_s:.4g} s: {split.compute_s:.4g} s of kernels, "
        f"{split.launch_s:.4g} s of launches, {split.communication_s:.4g} s of communication, "
        f"{split.slowest_s:.4g} s for the slowest rank, {split.input_s:.4g} s of input"
    )
    yield f"an epoch takes {train.duration_s:.5g} s; each GPU draws {train.gpu_power_w:.4g} W"
    yield f"the run takes {windows.end_s:.5g} s of simulated time"
    yield from prediction.warnings


def _log(folder: RunFolder, record: stored.RunRecord, lines: Iterable[str]) -> None:
    with folder.log_path.open("a", encoding="utf-8") as log:
        log.write(log_head(record))
        log.writelines(f"{line}\n" for line in lines)
