"""Random jobs with known truth: wattlaw's simulator, which is not the model that predicts.

The simulator computes kernels, buckets and power from descriptions of hardware and workloads
(docs/simulator.md). The distribution of a job:

- a cluster and a workload profile of wattlaw, each with equal probability; fp32 or bf16;
- log-normal factors with median 1 on the bandwidths of the node's links (standard deviation of
  logs 0.3) and of the network (0.7), and on 12 free parameters of the simulator (0.3);
- a local batch of the workload's usual times 1/2, 1 or 2; 6 to 10 observed settings: 1 to 8 GPUs
  or, for half of the jobs, 1 to 16 GPUs in nodes of the cluster; that batch or half of it; for half
  of the jobs, in four of ten settings, a power limit between the board's lowest and highest;
- a target: 1 to 64 GPUs, the batch times 1/2, 1 or 2 and, for jobs with limits, any limit or none;
- parts: exposed communication, the wait for the slowest rank and the wait for samples of each run,
  each times a log-normal factor (standard deviation of logs 0.05); only some checks use them;
- noise: a run's time and power deviate by t(4) numbers times 1 % and 0.7 %, and the time of a
  session (settings with equal GPUs) by t(4) times 0.6 %, in logs.
"""

from dataclasses import asdict, dataclass, replace

import numpy as np

from wattlaw.analysis.predict import Observation
from wattlaw.analysis.predict.observation import PARTS
from wattlaw.hardware import library
from wattlaw.study.model import WorkloadSpec
from wattlaw.study.setting import Setting
from wattlaw.workloads import catalogue
from wattlaw_simulator.simulate_step import predict
from wattlaw_simulator.simulated_job import Parameters, SimulatedJob

#: Profiles, with a usual local batch.
USUAL_BATCH = {
    "bert-base": 8, "dimenet": 64, "schnet": 128, "resnet50": 128, "inceptionv3": 128, "vgg16": 64,
    "fourcastnet": 4,
}  # fmt: skip
VARIED = (
    "compute_fp32", "compute_tensor", "bandwidth", "kernel_us", "launch_us", "step_ms", "network",
    "step_spread", "power_busy", "power_compute", "power_communication", "power_awake",
)  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """A job: its observations, the target, and the time and power of a future run of it."""

    observations: list[Observation]
    target: Setting
    step_time_s: float
    power_per_gpu_w: float

    @property
    def has_limits(self) -> bool:
        """Return whether a power limit was observed."""
        return any(item.setting.power_limit_w for item in self.observations)

    @property
    def is_across_nodes(self) -> bool:
        """Return whether the target has more nodes than any observation."""
        most = max(item.setting.nodes or 1 for item in self.observations)
        return (self.target.nodes or 1) > most


def draw(dice: np.random.Generator, *, with_parts: bool = False) -> Truth:
    """Return a random job, whose runs have measured the parts of a step if wanted."""
    world = _World(dice)
    counts = [1, 2, 4, 8, 16][: 4 + dice.integers(2)]
    limits = bool(dice.integers(2))
    usual = USUAL_BATCH[world.workload]
    batch = max(2, int(usual * dice.choice([0.5, 1.0, 2.0])))
    settings: dict[Setting, None] = {}
    size = int(dice.integers(6, 11))
    for _ in range(10 * size):
        local = batch // 2 if dice.random() < 0.4 else batch
        limit_w = world.limit_w() if limits and dice.random() < 0.4 else None
        settings[world.setting(int(dice.choice(counts)), local, limit_w)] = None
        if len(settings) == size:
            break
    target_batch = max(1, int(batch * dice.choice([0.5, 1.0, 2.0])))
    target_limit_w = world.limit_w() if limits and dice.random() < 0.5 else None
    target = world.setting(int(dice.choice([1, 2, 4, 8, 16, 32, 64])), target_batch, target_limit_w)
    sessions = {count: 0.006 * dice.standard_t(4) for count in (*counts, "target")}
    observations = [world.run(item, sessions[item.gpus]) for item in settings]
    if not with_parts:
        observations = [replace(item, **dict.fromkeys(PARTS)) for item in observations]
    future = world.run(target, sessions["target"])
    assert future.power_per_gpu_w is not None
    return Truth(observations, target, future.step_time_s, future.power_per_gpu_w)


class _World:
    """A cluster and a workload, with noise."""

    def __init__(self, dice: np.random.Generator) -> None:
        self.dice = dice
        self.part_dice = dice.spawn(1)[0]
        self.workload = str(dice.choice(list(USUAL_BATCH)))
        cluster = library.read_cluster(str(dice.choice(library.cluster_names())))
        node = cluster.node.model_copy(update={"link": self._varied(cluster.node.link, 0.3)})
        network = self._varied(cluster.network, 0.7)
        self.cluster = cluster.model_copy(update={"node": node, "network": network})
        self.precision = str(dice.choice([p for p in ("fp32", "bf16", "fp16")
                                          if p in cluster.gpu.peak_tflops]))  # fmt: skip
        defaults = asdict(Parameters())
        shares = {"compute_fp32", "compute_tensor", "bandwidth", "network"}
        changed = {name: defaults[name] * np.exp(dice.normal(0, 0.3)) for name in VARIED}
        self.parameters = Parameters(
            **{
                name: min(1.0, value) if name in shares else value
                for name, value in changed.items()
            }
        )
        self.profile = catalogue.profile(WorkloadSpec(name=self.workload))

    def limit_w(self) -> float:
        gpu = self.cluster.gpu
        return float(round(self.dice.uniform(gpu.min_limit_w, gpu.max_w)))

    def setting(self, gpus: int, batch: int, limit_w: float | None) -> Setting:
        return Setting.packed(
            gpus, self.cluster.node.gpus, local_batch=float(batch), precision=self.precision,
            power_limit_w=limit_w,
        )  # fmt: skip

    def run(self, setting: Setting, session: float) -> Observation:
        """Return a run with its parts."""
        assert setting.local_batch is not None
        job = SimulatedJob(
            self.profile, self.cluster, setting,
            samples=setting.gpus * int(setting.local_batch) * 1000, parameters=self.parameters,
        )  # fmt: skip
        result = predict(job)
        power_w = sum(phase.power_w * phase.duration_s for phase in result.phases)
        power_w /= sum(phase.duration_s for phase in result.phases)
        time_noise, power_noise = self.dice.standard_t(4, 2) * (0.01, 0.007)
        slower, split = np.exp(session + time_noise), result.split
        parts_s = np.array([split.communication_s, split.slowest_s, split.input_s]) * slower
        parts_s *= np.exp(0.05 * self.part_dice.standard_normal(3))
        return Observation(
            setting, split.step_s * slower, power_w * np.exp(power_noise), None, *parts_s.tolist()
        )

    def _varied(self, link, sd: float):
        factor = np.exp(self.dice.normal(0, sd))
        return link.model_copy(update={"bandwidth_gb_s": link.bandwidth_gb_s * factor})
