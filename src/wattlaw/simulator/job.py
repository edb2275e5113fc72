"""The input and the output of a simulation."""

from dataclasses import dataclass, field, fields

from wattlaw.simulator.cluster import Cluster
from wattlaw.simulator.parameters import Parameters
from wattlaw.simulator.profile import WorkloadProfile
from wattlaw.study.base import Precision


@dataclass(frozen=True)
class SimulatedJob:
    """One setting of one workload on one cluster.

    ``samples`` and ``evaluation_samples`` are of the full data set; training uses the fraction
    ``dataset_fraction`` of its samples.
    """

    profile: WorkloadProfile
    cluster: Cluster
    gpus: int
    local_batch: int
    samples: int
    evaluation_samples: int = 0
    precision: Precision = "fp32"
    power_limit_w: float | None = None
    clock_limit_mhz: float | None = None
    dataset_fraction: float = 1.0
    gradient_accumulation: int = 1
    bucket_mb: float = 25.0
    gpus_per_node: int | None = None  # None: all GPUs of the node
    loader_workers: int | None = None  # of each rank; None: an equal share of the cores
    parameters: Parameters = field(default_factory=Parameters)
    #: Operations and bytes of a sample over those of the profile, fitted by a calibration.
    work_factor: float = 1.0

    @property
    def global_batch(self) -> int:
        """Return the samples of one step."""
        return self.gpus * self.local_batch

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return -(-self.gpus // (self.gpus_per_node or self.cluster.node.gpus))


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
        """Return the time of a step."""
        return float(sum(getattr(self, part.name) for part in fields(self)))


@dataclass(frozen=True)
class Phase:
    """A part of every step with constant power and utilisation."""

    name: str  # "computing" (kernels and waiting for the host), "communication", "slowest", "input"
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
    warnings: tuple[str, ...] = ()
