"""The input of a simulation, its free parameters, and its output."""

from dataclasses import dataclass, fields

from wattlaw.hardware.cluster import Cluster
from wattlaw.study.base_model import Precision
from wattlaw.study.setting import Setting
from wattlaw.workloads.profile import WorkloadProfile


@dataclass(frozen=True)
class Parameters:
    """The free parameters: the shares of the hardware's peaks that runs achieve, of machines and
    software and never of a model. Comments are the sources of the defaults."""

    compute_fp32: float = 0.7  # assumed: large float32 products reach 70-90 % of peak
    #: Assumed: training on tensor cores reaches 30-60 % of peak within its kernels.
    compute_tensor: float = 0.45
    bandwidth: float = 0.8  # STREAM-like copies reach 75-90 % of a board's bandwidth
    kernel_us: float = 2.0  # assumed: start and end of a kernel on the GPU, 1-4 us
    launch_us: float = 8.0  # assumed: host's time for one operation of eager PyTorch, 5-10 us
    #: Assumed: host's time per step outside operations: loop, loader, optimiser, loss.
    step_ms: float = 1.0
    epoch_ms: float = 10.0  # assumed: barriers and the loader's start at an epoch's edges, 5-50 ms
    #: Measured: an epoch's order drawn on every rank, per sample of the whole data set, 48 to 73 ns
    #: from 0.8 to 1.3 million samples (numpy, AMD EPYC; docs/simulator.md).
    order_ns: float = 60.0
    network: float = 0.8  # assumed: NCCL's bus bandwidth over that of the links, 70-90 %
    #: Assumed: share of the communication that can hide behind the backward pass.
    overlap: float = 0.8
    #: Assumed: standard deviation over mean of a rank's time from one step to the next.
    step_spread: float = 0.02
    #: Of the speeds of boards of one kind: a range of 8 % over hundreds of boards (Sinha et al.
    #: 2022, Not All GPUs Are Created Equal, SC22) is about five standard deviations.
    gpu_spread: float = 0.015
    run_spread: float = 0.01  # assumed: of whole runs of one setting
    #: Dynamic power of a board at full clock, as shares of (max_w - idle_w): of running kernels, of
    #: arithmetic at its achievable rate, of memory at its achievable bandwidth. The first two are
    #: fitted to public traces of a V100 (benchmarks/power_traces.py).
    power_busy: float = 0.22
    power_compute: float = 0.72
    power_memory: float = 0.25  # assumed: copies draw about half of the limit
    power_communication: float = 0.12  # assumed: of gradients' communication and waiting for it
    power_awake: float = 0.05  # assumed: of waiting for the host with clocks up


@dataclass(frozen=True)
class SimulatedJob:
    """One setting of one workload on one cluster, on the fewest nodes if it is not placed. The
    samples are of the full data set; training uses the setting's fraction."""

    profile: WorkloadProfile
    cluster: Cluster
    setting: Setting
    samples: int
    evaluation_samples: int = 0
    bucket_mb: float = 25.0
    loader_workers: int | None = None  # of each rank; None: an equal share of the cores
    parameters: Parameters = Parameters()

    def __post_init__(self) -> None:
        if self.setting.gpus_per_node is None:
            placed = self.setting.on_nodes_of(self.cluster.node.gpus)
            object.__setattr__(self, "setting", placed)

    @property
    def gpus(self) -> int:
        return self.setting.gpus

    @property
    def nodes(self) -> int:
        return self.setting.nodes or 1

    @property
    def local_batch(self) -> int:
        return int(self.setting.local_batch or 1)

    @property
    def global_batch(self) -> int:
        return self.gpus * self.local_batch

    @property
    def limit_w(self) -> float:
        return self.setting.power_limit_w or self.cluster.gpu.max_w

    @property
    def precision(self) -> Precision:
        return self.setting.precision or "fp32"


@dataclass(frozen=True)
class Split:
    """The parts of the time of a mean step, in seconds; they add up to it."""

    compute_s: float  # a kernel of forward, backward or update is on the GPU
    launch_s: float  # the GPU waits for the host to launch kernels or to do other work
    communication_s: float  # communication of gradients that is not overlapped
    slowest_s: float  # waiting for the slowest rank
    input_s: float  # waiting for samples

    @property
    def step_s(self) -> float:
        return float(sum(getattr(self, part.name) for part in fields(self)))


@dataclass(frozen=True)
class Phase:
    """A part of every step with constant power and utilisation."""

    duration_s: float
    power_w: float  # of one GPU
    sm_util: float  # 0 to 1
    mem_util: float  # 0 to 1


@dataclass(frozen=True)
class Window:
    """An epoch's training, or an evaluation, of all GPUs of a run."""

    duration_s: float
    samples: int
    steps: int  # evaluation: forward passes of a rank
    gpu_energy_j: float
    cpu_energy_j: float
    dram_energy_j: float
    gpu_power_w: float  # mean of one GPU
    sm_util: float
    mem_util: float
    limited_by: str | None  # "power_limit_w" | "clock_limit_mhz"


@dataclass(frozen=True)
class Prediction:
    """The prediction for one epoch of a job. Energies are simulated, never measured."""

    job: SimulatedJob
    split: Split
    phases: tuple[Phase, ...]
    roofline_s: float  # least time of a step at the peaks of the hardware
    startup_s: float  # of an epoch: barriers, shuffling, the first samples
    step_cv: float  # coefficient of variation of the step times
    clock_mhz: float
    bottleneck: str  # "compute" | "launch" | "communication" | "input"
    power_throttle_share: float  # share of training in which a power limit lowers the clock
    train: Window
    evaluation: Window | None
    memory_gb: float = 0.0  # roughly what a rank needs
    warnings: tuple[str, ...] = ()
