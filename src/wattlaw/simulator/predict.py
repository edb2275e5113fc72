"""From a job to its prediction: the mean epoch, put together from the parts of a step.

A step computes its micro-batches, waits for the host where that issues kernels too slowly,
exchanges gradients, waits for the slowest rank, and waits for samples where the input takes longer
than all of that. Not modelled: temperature, other jobs on network and storage, garbage
collection, checkpoints, and failures.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from wattlaw.errors import BadInput
from wattlaw.simulator import kernels
from wattlaw.simulator.communication import Route, communication
from wattlaw.simulator.data_loading import first_input_s, input_s, loader_processes
from wattlaw.simulator.job import Job, Phase, Prediction, Split, Window
from wattlaw.simulator.kernels import Load
from wattlaw.simulator.power import Board, Point, with_curve
from wattlaw.simulator.spread import deviation_of_maximum, slowest_over_mean, step_cv

_FORWARD = ("forward",)
#: An all-reduce reads and writes each byte about twice on the GPU.
_COMMUNICATION_PASSES = 4


@dataclass(frozen=True)
class _Update:
    """One step, or one forward pass of an evaluation."""

    split: Split
    point: Point
    phases: tuple[Phase, ...]


def predict(job: Job) -> Prediction:
    """Return time, power and utilisation of a job's mean epoch.

    Raises
    ------
    BadInput
        The board lacks the precision or a limit is out of its range, or an epoch has no update.
    """
    _check(job)
    kept = max(1, round(job.samples * job.dataset_fraction))
    whole, rest = divmod(kept, job.global_batch)
    if rest < job.gpus:
        rest = 0
    parts = [(whole, float(job.local_batch)), (int(rest > 0), rest / job.gpus)]
    steps = [(count, _update(job, local)) for count, local in parts if count]
    if not steps:
        raise BadInput(f"gpus: given {job.gpus} for {kept} samples; allowed: one or more for each")
    main = steps[0][1]
    startup_s = first_input_s(job, min(job.local_batch, kept / job.gpus)) + _edges_s(job)
    samples = whole * job.global_batch + rest
    board = _board(job)
    awake_w = board.awake_w(main.point.clock_mhz)
    train = _window(job, steps, startup_s, awake_w, samples)
    limited = main.point.limited_by
    computing_s = main.split.compute_s + main.split.launch_s
    held = computing_s / main.split.step_s if limited == "power_limit_w" else 0.0
    return Prediction(
        job=job,
        split=main.split,
        phases=main.phases,
        roofline_s=_roofline_s(job, parts[0][1] if whole else parts[1][1]),
        startup_s=startup_s,
        step_cv=_step_cv(job, computing_s / main.split.step_s),
        clock_mhz=main.point.clock_mhz,
        bottleneck=_bottleneck(job, main),
        power_throttle_share=held,
        train=train,
        evaluation=_evaluation(job, awake_w) if job.evaluation_samples else None,
        warnings=_warnings(job),
    )


def _check(job: Job) -> None:
    gpu = job.cluster.gpu
    kernels.peak_flops(gpu, job.precision)
    for key, given, low, high in (
        ("power_limit_w", job.power_limit_w, gpu.min_limit_w, gpu.max_w),
        ("clock_limit_mhz", job.clock_limit_mhz, gpu.min_clock_mhz, gpu.max_clock_mhz),
    ):
        if given is not None and not low <= given <= high:
            raise BadInput(f"{key}: given {given:g}; allowed on {gpu.name}: {low:g} to {high:g}")


def _warnings(job: Job) -> tuple[str, ...]:
    found = []
    if job.nodes > job.cluster.nodes:
        found.append(
            f"{job.nodes} nodes are more than the {job.cluster.nodes} of {job.cluster.name}"
        )
    if job.global_batch > job.samples * job.dataset_fraction:
        found.append(
            "the global batch is greater than the data set: an epoch is one smaller update"
        )
    needs_gb, has_gb = _memory_gb(job), job.cluster.gpu.memory_gb
    if needs_gb > has_gb:
        found.append(
            f"{job.gpus} GPUs, local batch {job.local_batch}: by a rough count it takes "
            f"{needs_gb:,.0f} GB of a board's {has_gb:g} GB of memory"
        )
    return tuple(found)


def _memory_gb(job: Job) -> float:
    """Return roughly what a rank needs: parameters four times over, and activations.

    Gradients and two moments of the optimiser are as large as the parameters, in float32. What the
    forward pass writes is kept for the backward pass: about half of the bytes that it moves.
    """
    state = 16 * job.profile.parameters
    forward = _load(job, _FORWARD, _micro(job, float(job.local_batch))[1])
    kept = float((forward.bytes_moved * forward.count).sum()) / 2
    return (state + kept) / 1e9


def _board(job: Job) -> Board:
    gpu = with_curve(job.cluster.gpu, job.parameters)
    return Board(gpu, job.precision, job.parameters, job.power_limit_w, job.clock_limit_mhz)


def _micro(job: Job, local: float) -> tuple[int, float]:
    """Return the number of micro-batches of a rank's share of a step, and their samples."""
    pieces = min(job.gradient_accumulation, ceil(local))
    return pieces, local / pieces


def _loads(job: Job, local: float) -> tuple[Load, Load]:
    """Return the kernels of one step on one rank, and those of the last backward pass."""
    pieces, samples = _micro(job, local)
    passes = _load(job, ("forward", "backward"), samples)
    update = kernels.load_of(job.profile, ("optimizer",), 0.0, job.precision)
    both = Load(
        np.concatenate([passes.count * pieces, update.count]),
        np.concatenate([passes.flops, update.flops]),
        np.concatenate([passes.bytes_moved, update.bytes_moved]),
    )
    return both, _load(job, ("backward",), samples)


def _load(job: Job, phases: tuple[str, ...], samples: float) -> Load:
    """Return kernels for so many samples, each of which is ``work_factor`` times the profile'."""
    return kernels.load_of(job.profile, phases, samples * job.work_factor, job.precision)


def _roofline_s(job: Job, local: float) -> float:
    return kernels.roofline_s(_loads(job, local)[0], job.cluster.gpu, job.precision)


def _host_s(job: Job, load: Load) -> float:
    own = job.parameters
    return load.launches * own.launch_us * 1e-6 + own.step_ms * 1e-3


def _update(job: Job, local: float) -> _Update:
    """Return a step of which each rank computes ``local`` samples."""
    own, gpu = job.parameters, job.cluster.gpu
    load, backward = _loads(job, local)
    host_s = _host_s(job, load)
    board = _board(job)
    point = board.run(load, host_s)
    computing_s = point.compute_s + point.launch_s
    alone = kernels.busy(backward, gpu, job.precision, own, np.array([point.clock_mhz]))
    host_share = backward.launches / load.launches
    backward_s = min(computing_s, max(float(alone.duration_s[0]), host_s * host_share))
    way = Route(job.cluster, job.gpus, job.nodes, own.network)
    sent = communication(job.profile, way, backward_s, job.bucket_mb, own.overlap)
    slowest = slowest_over_mean(own, job.profile.work_cv, local, job.gpus)
    moved = _COMMUNICATION_PASSES * job.profile.gradient_bytes
    rate = gpu.memory_bandwidth_gb_s * 1e9 * own.bandwidth
    return _put_together(
        job, local, point, board,
        communication_s=sent.exposed_s,
        slowest_s=(slowest - 1) * computing_s,
        communication_memory=min(1.0, moved / (rate * sent.total_s)) if sent.total_s else 0.0,
    )  # fmt: skip


def _forward(job: Job, local: float) -> _Update:
    """Return the forward pass of an evaluation; ranks do not wait for each other."""
    load = _load(job, _FORWARD, local)
    board = _board(job)
    point = board.run(load, _host_s(job, load))
    return _put_together(job, local, point, board, 0.0, 0.0, 0.0)


def _put_together(
    job: Job,
    local: float,
    point: Point,
    board: Board,
    communication_s: float,
    slowest_s: float,
    communication_memory: float,
) -> _Update:
    samples_s = input_s(job, local)
    others_s = point.compute_s + point.launch_s + communication_s + slowest_s
    waits_s = max(0.0, samples_s - others_s) if loader_processes(job) else samples_s
    split = Split(point.compute_s, point.launch_s, communication_s, slowest_s, waits_s)
    awake_w, communication_w = (
        board.awake_w(point.clock_mhz),
        board.communication_w(point.clock_mhz),
    )
    computing_s = split.compute_s + split.launch_s
    busy = split.compute_s / computing_s if computing_s else 0.0
    phases = (
        # Kernels and gaps between them change places in microseconds: sensors and limits see both.
        Phase(
            "computing",
            computing_s,
            busy * point.compute_w + (1 - busy) * awake_w,
            busy,
            busy * point.memory_share,
        ),
        Phase("communication", split.communication_s, communication_w, 1.0, communication_memory),
        # A rank that waits for others does so in the kernel of the communication.
        Phase("slowest", split.slowest_s, communication_w, 1.0, 0.0),
        Phase("input", split.input_s, awake_w, 0.0, 0.0),
    )
    return _Update(split, point, phases)


def _bottleneck(job: Job, update: _Update) -> str:
    """Return what would have to be quicker for steps to be quicker.

    Loader processes and the host work beside the kernels: whichever is waited for holds all.
    """
    split = update.split
    computing_s = split.compute_s + split.launch_s
    if loader_processes(job) and split.input_s > 0:
        return "input"
    if max(computing_s, split.input_s) < split.communication_s + split.slowest_s:
        return "communication"
    if split.input_s > computing_s:
        return "input"
    # At the least clock a board pauses for its power limit, not for the host.
    point, least_mhz = update.point, job.cluster.gpu.min_clock_mhz
    is_paused = point.limited_by == "power_limit_w" and point.clock_mhz <= least_mhz
    return "launch" if split.launch_s > 0 and not is_paused else "compute"


def _step_cv(job: Job, computing_share: float) -> float:
    """Return standard deviation over mean of steps: each takes as long as the slowest rank."""
    of_rank = step_cv(job.parameters, job.profile.work_cv, job.local_batch)
    return computing_share * of_rank * deviation_of_maximum(job.gpus)


def _edges_s(job: Job) -> float:
    """Return what an epoch takes besides its steps: barriers, and its order on every rank."""
    own = job.parameters
    return own.epoch_ms * 1e-3 + own.order_ns * 1e-9 * job.samples


def _evaluation(job: Job, awake_w: float) -> Window:
    local = min(float(job.local_batch), job.evaluation_samples / job.gpus)
    passes = job.evaluation_samples / (local * job.gpus)
    whole = ceil(passes - 1e-9)
    forward = _forward(job, local * passes / whole)
    startup_s = first_input_s(job, local)
    return _window(job, [(whole, forward)], startup_s, awake_w, job.evaluation_samples)


def _window(
    job: Job,
    steps: list[tuple[int, _Update]],
    startup_s: float,
    awake_w: float,
    samples: int,
) -> Window:
    """Return the sums of a window: its start, in which GPUs wait, and its steps."""
    pieces = [(startup_s, awake_w, 0.0, 0.0)]
    pieces += [
        (count * phase.duration_s, phase.power_w, phase.sm_util, phase.mem_util)
        for count, update in steps
        for phase in update.phases
    ]
    duration_s, power_w, sm_util, mem_util = np.array(pieces).T
    in_all_s = float(duration_s.sum())
    per_gpu_j = float((duration_s * power_w).sum())
    # One core of each rank issues kernels, and loads samples where no other process does.
    loading_s = samples * job.profile.input_cpu_s_per_sample if loader_processes(job) else 0.0
    node = job.cluster.node
    busy_cores = min(job.gpus + loading_s / in_all_s, job.nodes * node.cores)
    cpu_w = job.nodes * node.cpu_idle_w + busy_cores * node.cpu_core_w
    return Window(
        duration_s=in_all_s,
        samples=samples,
        steps=sum(count for count, _ in steps),
        gpu_energy_j=job.gpus * per_gpu_j,
        cpu_energy_j=cpu_w * in_all_s,
        dram_energy_j=job.nodes * node.dram_w * in_all_s,
        gpu_power_w=per_gpu_j / in_all_s,
        sm_util=float((duration_s * sm_util).sum()) / in_all_s,
        mem_util=float((duration_s * mem_util).sum()) / in_all_s,
        limited_by=steps[0][1].point.limited_by,
    )
