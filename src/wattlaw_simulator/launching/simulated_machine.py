"""The simulated machine of a study, and the simulator's job of a run."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput, WattlawError
from wattlaw.common.formatting import plural
from wattlaw.hardware import library
from wattlaw.hardware.cluster import Cluster
from wattlaw.measure.devices.limiter import LimitState
from wattlaw.running.boards import Board
from wattlaw.study.launching import Launch, Simulation
from wattlaw.study.model import RunSpec, WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.profile import WorkloadProfile
from wattlaw_simulator.simulated_job import Parameters, SimulatedJob


def simulation_job(
    spec: RunSpec,
    cluster: Cluster,
    *,
    gpus_per_node: int | None = None,
    profile: WorkloadProfile | None = None,
    samples: int | None = None,
) -> SimulatedJob:
    """Return the simulator's job of a run, with one sample per GPU where the local batch is
    unknown. ``profile`` replaces the stored profile, ``samples`` the size of the full data set.
    Raises ``BadInput`` for a command, invalid options, and where either is unknown."""
    workload, work = spec.workload, None
    if workload.command is not None:
        raise BadInput(f"{workload.name}: a command has no profile; allowed: a workload")
    if profile is None or samples is None:  # else it may be an unregistered workload
        work = _catalogued(catalogue.work, workload.model_dump_json())
    if profile is None:
        profile = _catalogued(catalogue.profile, workload.model_dump_json())
    if samples is None:
        if work is None:
            raise BadInput(f"{workload.name}: the number of samples of its data set is unknown")
        samples = work.samples
    setting, train, edges_ms = spec.setting, spec.train, cluster.epoch_ms
    if gpus_per_node is not None:
        setting = setting.on_nodes_of(gpus_per_node)
    return SimulatedJob(
        profile=profile,
        cluster=cluster,
        setting=replace(setting, gradient_accumulation=train.gradient_accumulation),
        samples=samples,
        evaluation_samples=work.evaluation_samples if work and spec.measure.evaluate else 0,
        bucket_mb=train.bucket_mb,
        loader_workers=train.loader_workers,
        parameters=Parameters() if edges_ms is None else Parameters(epoch_ms=edges_ms),
    )


@cache  # thousands of runs share a workload
def _catalogued(read: Callable[[WorkloadSpec], Any], workload: str) -> Any:
    return read(WorkloadSpec.model_validate_json(workload))


#: The most boards of a run that have telemetry.
_REPORTED_BOARDS = 4
_HARDWARE = "launch.simulation.hardware (or --hardware)"


@dataclass(frozen=True)
class Machine:
    """A simulated cluster, which is passed to the processes of the pool."""

    cluster: Cluster
    gpus_per_node: int
    simulation: Simulation

    @classmethod
    def from_launch(cls, launch: Launch) -> "Machine":
        simulation = launch.simulation
        if simulation.hardware is None:
            names = ", ".join((*library.cluster_names(), *library.gpu_names()))
            raise BadInput(f"{_HARDWARE} is required; allowed: a file, or one of {names}")
        try:
            cluster = library.read_cluster(simulation.hardware)
        except BadInput as error:
            raise BadInput(f"{_HARDWARE}: {error}") from None
        available = cluster.node.gpus
        if launch.gpus_per_node is not None and launch.gpus_per_node > available:
            allowed = f"allowed: 1 to {available}, the GPUs of a node of {cluster.name}"
            raise BadInput(f"launch.gpus_per_node: {launch.gpus_per_node} is too large; {allowed}")
        return cls(cluster, launch.gpus_per_node or available, simulation)

    @property
    def board(self) -> Board:
        return Board(self.cluster.gpu.name, self.cluster.gpu.memory_gb)

    @cached_property
    def label(self) -> str:
        """Return the hardware's name with all that changes its numbers: part of run identities."""
        simulation, name = self.simulation, str(self.simulation.hardware)
        if name not in (*library.cluster_names(), *library.gpu_names()):
            digest = hashlib.sha256(self.cluster.model_dump_json().encode()).hexdigest()[:8]
            name = f"{Path(name).stem[:80]} {digest}"
        details = ["simulated", self.cluster.calibration]
        if simulation.seed:
            details.append(f"seed {simulation.seed}")
        if simulation.critical_batch is not None:
            epochs = f"{simulation.epochs_to_target:g} epochs"
            details.append(f"critical batch {simulation.critical_batch:g}, {epochs}")
        return f"{name} ({', '.join(details)})"

    def job(self, spec: RunSpec) -> SimulatedJob:
        return simulation_job(spec, self.cluster, gpus_per_node=self._per_node(spec))

    def _per_node(self, spec: RunSpec) -> int:
        """Return the GPUs of each of a run's nodes; without a sweep of nodes, as many as it has."""
        gpus = spec.setting.gpus
        fills_nodes = spec.nodes == -(-gpus // self.gpus_per_node)
        return self.gpus_per_node if fills_nodes else -(-gpus // spec.nodes)

    def nodes_reason(self, spec: RunSpec) -> str | None:
        if self._per_node(spec) <= self.gpus_per_node:
            return None
        needed = f"needs {self._per_node(spec)} GPUs on each of {plural(spec.nodes, 'node')}"
        return f"{needed}; a node has {self.gpus_per_node}"

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        if spec.workload.command is not None:
            return "a command cannot be simulated; workloads can"
        gpu, precision = self.cluster.gpu, spec.setting.precision
        if precision not in gpu.peak_tflops:
            return f"{gpu.name} does not have {precision}; it has {', '.join(gpu.peak_tflops)}"
        try:
            self.job(spec)
        except WattlawError as error:
            return str(error)
        return None

    def host(self, spec: RunSpec) -> str:
        return "sim0001" if spec.nodes == 1 else f"sim[0001-{spec.nodes:04d}]"

    def reported_boards(self, spec: RunSpec) -> list[str]:
        """Return the boards of a run with telemetry: the first, the last, two in between."""
        gpus, per_node = spec.setting.gpus, self._per_node(spec)
        count = min(gpus, _REPORTED_BOARDS)
        numbers = [round(i * (gpus - 1) / max(1, count - 1)) for i in range(count)]
        return [f"SIM-{number // per_node + 1:04d}-{number % per_node}" for number in numbers]

    def board_states(self, spec: RunSpec) -> list[LimitState]:
        gpu = self.cluster.gpu
        return [
            LimitState(
                *(board, f"{gpu.name}, simulated", gpu.max_w, gpu.max_w, gpu.max_w),
                *(gpu.min_limit_w, gpu.max_w, gpu.min_clock_mhz, gpu.max_clock_mhz),
            )
            for board in self.reported_boards(spec)
        ]
