"""Predicts the mean epoch of a job from the parts of a step.

A step computes its micro-batches, waits for the host if that launches kernels too slowly,
all-reduces gradients, waits for the slowest rank, and waits for samples where the input takes
longer than all of that. Not modelled: temperature, other jobs on network and storage, garbage
collection, checkpoints, and failures.

Every step waits for the slowest of N ranks. Ranks differ permanently (boards of one model are not
equally fast) and from step to step (system noise, samples of different size). Both are assumed to
be normal and independent, so that the slowest takes (1 + sigma m(N)) times the mean, with
m(N) the expected maximum of N standard normal numbers (Blom 1958:
m(N) = Phi^-1((N - 0.375) / (N + 0.25)), within 0.026; 0 for N = 1).
"""

from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.workloads.profile import micro_batch, rank_memory_gb
from wattlaw_simulator import kernels
from wattlaw_simulator.communication import Route, communication
from wattlaw_simulator.kernels import Load
from wattlaw_simulator.power import Board, Point
from wattlaw_simulator.simulated_job import (
    Parameters,
    Phase,
    Prediction,
    SimulatedJob,
    Split,
    Window,
)

#: An all-reduce reads and writes each byte about twice on the GPU.
_COMMUNICATION_PASSES = 4
#: The most loader processes of a rank by default, as in ``workloads.data_loading``.
MAX_LOADER_PROCESSES = 8


@dataclass(frozen=True)
class _Step:
    split: Split
    point: Point
    phases: tuple[Phase, ...]


def predict(job: SimulatedJob) -> Prediction:
    """Return a job's mean epoch; ``BadInput`` if the board cannot run it or it has no step."""
    _check(job)
    samples_used = max(1, round(job.samples * job.setting.dataset_fraction))
    full_steps, rest = divmod(samples_used, job.global_batch)
    if rest < job.gpus:
        rest = 0
    parts = [(full_steps, float(job.local_batch)), (int(rest > 0), rest / job.gpus)]
    steps = [(count, _training_step(job, local)) for count, local in parts if count]
    if not steps:
        given = f"gpus: given {job.gpus} for {samples_used} samples"
        raise BadInput(f"{given}; allowed: a sample for each GPU")
    main = steps[0][1]
    parameters = job.parameters
    # Barriers, and shuffling on every rank.
    outside_steps_s = parameters.epoch_ms * 1e-3 + parameters.order_ns * 1e-9 * job.samples
    first_s = _first_input_s(job, min(job.local_batch, samples_used / job.gpus))
    startup_s = first_s + outside_steps_s
    samples = full_steps * job.global_batch + rest
    awake_w = _board(job).constant_w(parameters.power_awake, main.point.clock_mhz)
    train = _window(job, steps, startup_s, awake_w, samples)
    compute_share = main.split.compute_s / main.split.step_s
    computing_share = compute_share + main.split.launch_s / main.split.step_s
    load, _ = _loads(job, parts[0][1] if full_steps else parts[1][1])
    # Each step is as long as that of the slowest rank.
    rank_cv = step_cv(parameters, job.profile.work_cv, job.local_batch)
    return Prediction(
        job=job,
        split=main.split,
        phases=main.phases,
        roofline_s=kernels.roofline_s(load, job.cluster.gpu, job.precision),
        startup_s=startup_s,
        step_cv=computing_share * rank_cv * deviation_of_maximum(job.gpus),
        clock_mhz=main.point.clock_mhz,
        bottleneck=_bottleneck(job, main),
        power_throttle_share=compute_share * main.point.limited_share,
        train=train,
        evaluation=_evaluation(job, awake_w) if job.evaluation_samples else None,
        memory_gb=_memory_gb(job),
        warnings=_warnings(job),
    )


def _check(job: SimulatedJob) -> None:
    gpu = job.cluster.gpu
    kernels.peak_flops(gpu, job.precision)
    for key, given, low, high in (
        ("power_limit_w", job.setting.power_limit_w, gpu.min_limit_w, gpu.max_w),
        ("clock_limit_mhz", job.setting.clock_limit_mhz, gpu.min_clock_mhz, gpu.max_clock_mhz),
    ):
        if given is not None and not low <= given <= high:
            raise BadInput(f"{key}: given {given:g}; allowed on {gpu.name}: {low:g} to {high:g}")


def _warnings(job: SimulatedJob) -> tuple[str, ...]:
    warnings = []
    if job.nodes > job.cluster.nodes:
        warnings.append(f"{job.nodes} nodes; {job.cluster.name} has {job.cluster.nodes}")
    if job.global_batch > job.samples * job.setting.dataset_fraction:
        warnings.append("the global batch is larger than the data: an epoch is one smaller step")
    needs_gb, has_gb = _memory_gb(job), job.cluster.gpu.memory_gb
    if needs_gb > has_gb:
        warnings.append(
            f"{plural(job.gpus, 'GPU')}, local batch {job.local_batch}: does not fit into GPU "
            f"memory: it needs roughly {needs_gb:,.0f} GB of {has_gb:g} GB"
        )
    return tuple(warnings)


def _memory_gb(job: SimulatedJob) -> float:
    samples = micro_batch(job.local_batch, job.setting.gradient_accumulation)
    return rank_memory_gb(job.profile, samples, job.precision)


def _board(job: SimulatedJob) -> Board:
    limits = job.setting.power_limit_w, job.setting.clock_limit_mhz
    return Board(job.cluster.gpu, job.precision, job.parameters, *limits)


def _loads(job: SimulatedJob, local: float) -> tuple[Load, Load]:
    """Return the kernels of one step on one rank, and those of the last backward pass."""
    pieces = min(job.setting.gradient_accumulation, ceil(local))  # micro-batches of a rank
    samples = local / pieces
    load_of = partial(kernels.kernel_load, job.profile, precision=job.precision)
    passes, optimizer = load_of(("forward", "backward"), samples), load_of(("optimizer",), 0.0)
    both = Load(
        np.concatenate([passes.count * pieces, optimizer.count]),
        np.concatenate([passes.flops, optimizer.flops]),
        np.concatenate([passes.bytes_moved, optimizer.bytes_moved]),
    )
    return both, load_of(("backward",), samples)


def _host_s(job: SimulatedJob, load: Load) -> float:
    parameters = job.parameters
    return load.launches * parameters.launch_us * 1e-6 + parameters.step_ms * 1e-3


def _training_step(job: SimulatedJob, local: float) -> _Step:
    parameters, gpu = job.parameters, job.cluster.gpu
    load, backward = _loads(job, local)
    host_s = _host_s(job, load)
    board = _board(job)
    point = board.run(load, host_s)
    computing_s = point.compute_s + point.launch_s
    host_share = backward.launches / load.launches
    backward_s = min(computing_s, max(board.run(backward, 0.0).compute_s, host_s * host_share))
    route = Route(job.cluster, job.gpus, job.nodes, parameters.network)
    allreduce = communication(job.profile, route, backward_s, job.bucket_mb, parameters.overlap)
    slowest = slowest_over_mean(parameters, job.profile.work_cv, local, job.gpus)
    bandwidth = gpu.memory_bandwidth_gb_s * 1e9 * parameters.bandwidth
    moved_s = _COMMUNICATION_PASSES * job.profile.gradient_bytes / bandwidth
    return _step(
        job, local, point, board,
        communication_s=allreduce.exposed_s,
        slowest_s=(slowest - 1) * computing_s,
        communication_memory=min(1.0, moved_s / allreduce.total_s) if allreduce.total_s else 0.0,
    )  # fmt: skip


def _step(
    job: SimulatedJob,
    local: float,
    point: Point,
    board: Board,
    communication_s: float,
    slowest_s: float,
    communication_memory: float,
) -> _Step:
    cores_s, storage_s = local * job.profile.input_cpu_s_per_sample, _storage_s(job, local)
    workers = loader_processes(job)
    samples_s = max(cores_s / workers, storage_s) if workers else cores_s + storage_s
    others_s = point.compute_s + point.launch_s + communication_s + slowest_s
    waits_s = max(0.0, samples_s - others_s) if workers else samples_s
    split = Split(point.compute_s, point.launch_s, communication_s, slowest_s, waits_s)
    shares = job.parameters.power_awake, job.parameters.power_communication
    awake_w, communication_w = (board.constant_w(share, point.clock_mhz) for share in shares)
    computing_s = split.compute_s + split.launch_s
    busy = split.compute_s / computing_s if computing_s else 0.0
    # Kernels and gaps alternate within microseconds: sensors and limits see their mean.
    mean_w = busy * point.compute_w + (1 - busy) * awake_w
    phases = (
        Phase(computing_s, mean_w, busy, busy * point.memory_share),
        Phase(split.communication_s, communication_w, 1.0, communication_memory),
        # A rank waits for the others in the communication kernel.
        Phase(split.slowest_s, communication_w, 1.0, 0.0),
        Phase(split.input_s, awake_w, 0.0, 0.0),
    )
    return _Step(split, point, phases)


def _bottleneck(job: SimulatedJob, step: _Step) -> str:
    """Return the slowest of the kernels, the loader processes and the host, all parallel."""
    split = step.split
    computing_s = split.compute_s + split.launch_s
    if loader_processes(job) and split.input_s > 0:
        return "input"
    if max(computing_s, split.input_s) < split.communication_s + split.slowest_s:
        return "communication"
    if split.input_s > computing_s:
        return "input"
    return "launch" if split.launch_s > 0 else "compute"


def _evaluation(job: SimulatedJob, awake_w: float) -> Window:
    local = min(float(job.local_batch), job.evaluation_samples / job.gpus)
    passes = job.evaluation_samples / (local * job.gpus)
    count = ceil(passes - 1e-9)
    mean_local = local * passes / count
    load = kernels.kernel_load(job.profile, ("forward",), mean_local, job.precision)
    board = _board(job)
    point = board.run(load, _host_s(job, load))
    forward = _step(job, mean_local, point, board, 0.0, 0.0, 0.0)  # ranks do not wait
    startup_s = _first_input_s(job, local)
    return _window(job, [(count, forward)], startup_s, awake_w, job.evaluation_samples)


def _window(
    job: SimulatedJob,
    steps: list[tuple[int, _Step]],
    startup_s: float,
    awake_w: float,
    samples: int,
) -> Window:
    pieces = [(startup_s, awake_w, 0.0, 0.0)]
    pieces += [
        (count * phase.duration_s, phase.power_w, phase.sm_util, phase.mem_util)
        for count, step in steps
        for phase in step.phases
    ]
    duration_s, power_w, sm_util, mem_util = np.array(pieces).T
    total_s = float(duration_s.sum())
    per_gpu_j = float((duration_s * power_w).sum())
    # One core of each rank launches kernels, and loads samples without loader processes.
    loading_s = samples * job.profile.input_cpu_s_per_sample if loader_processes(job) else 0.0
    node = job.cluster.node
    busy_cores = min(job.gpus + loading_s / total_s, job.nodes * node.cores)
    cpu_w = job.nodes * node.cpu_idle_w + busy_cores * node.cpu_core_w
    is_capped = bool(steps[0][1].point.limited_share)
    is_locked = _board(job).top_mhz < job.cluster.gpu.max_clock_mhz
    return Window(
        duration_s=total_s,
        samples=samples,
        steps=sum(count for count, _ in steps),
        gpu_energy_j=job.gpus * per_gpu_j,
        cpu_energy_j=cpu_w * total_s,
        dram_energy_j=job.nodes * node.dram_w * total_s,
        gpu_power_w=per_gpu_j / total_s,
        sm_util=float((duration_s * sm_util).sum()) / total_s,
        mem_util=float((duration_s * mem_util).sum()) / total_s,
        limited_by="power_limit_w" if is_capped else "clock_limit_mhz" if is_locked else None,
    )


def loader_processes(job: SimulatedJob) -> int:
    """Return the loader processes of a rank: as set, or as ``workloads.data_loading`` has it."""
    if job.loader_workers is not None:
        return job.loader_workers
    if not job.profile.reads_files:
        return 0
    per_node = max(job.setting.gpus_per_node or (1,))
    spare = job.cluster.node.cores // per_node - 1
    return min(MAX_LOADER_PROCESSES, max(1, spare))


def _storage_s(job: SimulatedJob, local: float) -> float:
    """Return the time to read the samples of a step, of all ranks, from the shared storage."""
    if not job.profile.reads_files:
        return 0.0  # the data set is in memory
    stored = job.gpus * local * job.profile.stored_bytes_per_sample
    return stored / (job.cluster.storage_gb_s * 1e9)


def _first_input_s(job: SimulatedJob, local: float) -> float:
    """Return the wait for the first batch of an epoch, which one process of each rank prepares."""
    if not loader_processes(job):
        return 0.0  # the rank prepares every batch itself
    return local * job.profile.input_cpu_s_per_sample + _storage_s(job, local)


def expected_maximum(count: int) -> float:
    """Return the expected maximum of ``count`` standard normal numbers, by Blom's formula."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def step_cv(parameters: Parameters, work_cv: float, local_batch: float) -> float:
    """Return the variation of a rank's steps; samples are independent, a step is their mean."""
    return sqrt(parameters.step_spread**2 + work_cv**2 / local_batch)


def deviation_of_maximum(count: int) -> float:
    """Return the standard deviation of the maximum of ``count`` standard normal numbers.

    Half of the distance between the maximum's quantiles at one standard deviation below and above,
    Phi^-1(p^(1/n)); exact for one number, within 3 % for more.
    """
    normal = NormalDist()
    low, high = (normal.inv_cdf(normal.cdf(side) ** (1 / count)) for side in (-1.0, 1.0))
    return (high - low) / 2


def slowest_over_mean(
    parameters: Parameters, work_cv: float, local_batch: float, ranks: int
) -> float:
    sigma = sqrt(step_cv(parameters, work_cv, local_batch) ** 2 + parameters.gpu_spread**2)
    return 1 + sigma * expected_maximum(ranks)
