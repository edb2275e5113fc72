"""The rows of live streams; ``store.schema`` derives the columns of tables from them."""

from typing import Literal, NamedTuple

#: Parts of a machine whose energy is read, from the innermost scope to the outermost: devices, a
#: module (a board with processors and GPUs), a node, and a chassis of several nodes.
Kind = Literal["gpu", "cpu", "dram", "module", "node", "chassis"]
PowerSource = Literal["measured", "estimated", "simulated"]


class Sample(NamedTuple):
    """The readings of one device at one moment; None for a value without a reading."""

    device: str
    kind: Kind
    t_ns: int  # host's wall clock, nanoseconds since 1970
    power_w: float | None = None
    energy_j: float | None = None  # counter since some start: only differences count
    power_source: PowerSource | None = None  # null where there is no power
    power_average_w: float | None = None  # the device's own mean, over 1 s on most GPUs
    power_limit_w: float | None = None  # as enforced
    sm_util: float | None = None  # share of time with a kernel on the GPU, 0 to 1, as all shares
    mem_util: float | None = None  # share of time in which device memory was read or written
    sm_occupancy: float | None = None  # share of active warps
    tensor_util: float | None = None  # share of time in tensor operations
    dram_util: float | None = None  # share of the memory bandwidth
    cpu_cores: float | None = None  # busy cores since the sample before
    mem_used_bytes: int | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle: int | None = None  # bit mask of NVML's clocks event reasons
    power_throttle_s: float | None = None  # counter: time at the power limit


class Window(NamedTuple):
    """One finished window, as a worker writes it at its end: one row per host.

    The phase is ``train`` (an epoch or a part of it), ``evaluate``, ``steps`` (a block of optimizer
    steps), ``run`` (a process that marked nothing), or a name of the user's own.
    """

    host: str
    epoch: int | None  # null for phases without epochs, such as ``steps``
    phase: str
    warmup: bool
    start_ns: int  # host's wall clock, nanoseconds since 1970
    duration_s: float
    interrupted: bool = False  # a part of an interrupted epoch, or the first after a restart
    from_step: int | None = None  # first step in its epoch; of ``steps``, in its run
    samples: int | None = None  # processed by the ranks of this host
    steps: int | None = None  # optimizer steps, the same on every host
    loss: float | None = None  # mean over all samples of all ranks
    metric: float | None = None  # the workload's metric over all samples of all ranks
    metrics: str | None = None  # JSON: all results of an evaluation, by name
    step_time_mean_s: float | None = None
    step_time_p50_s: float | None = None
    step_time_p95_s: float | None = None
    step_time_cv: float | None = None
    step_time_error: float | None = None  # of the mean, by blocks of steps
    data_wait_s: float | None = None  # of training steps, mean over ranks: waiting for samples
    communication_s: float | None = None  # of gradients that the backward pass does not hide
    rank_wait_s: float | None = None  # waiting for the slowest rank, mean over ranks
