"""The simulated machine of a study: a cluster, its parameters, and its label."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattlaw.errors import BadInput, WattlawError
from wattlaw.launch.simulated.simulation_inputs import simulation_job
from wattlaw.simulator import library
from wattlaw.simulator.cluster import Cluster
from wattlaw.simulator.job import SimulatedJob
from wattlaw.study.launching import Launch, Simulation
from wattlaw.study.model import RunSpec

if TYPE_CHECKING:
    from wattlaw.simulator.calibration import Calibration

KIND = "simulated"
#: The most boards of a run that have telemetry.
_REPORTED_BOARDS = 4


@dataclass(frozen=True)
class Machine:
    """A simulated cluster, which is passed to the processes of the pool."""

    cluster: Cluster
    gpus_per_node: int
    simulation: Simulation
    calibration: "Calibration | None"
    #: The name of the hardware and all that changes its numbers; part of a run's identity.
    label: str

    @classmethod
    def from_launch(cls, launch: Launch) -> "Machine":
        """Return the machine of a study.

        Raises
        ------
        BadInput
            The hardware is missing or cannot be read, or its nodes have fewer GPUs than the study
            needs.
        """
        simulation = launch.simulation
        if simulation.hardware is None:
            raise BadInput(
                "launch.simulation.hardware (or --hardware) is required; allowed: a file, or one "
                f"of {', '.join((*library.cluster_names(), *library.gpu_names()))}"
            )
        try:
            cluster = library.read_cluster(simulation.hardware)
        except BadInput as error:
            raise BadInput(f"launch.simulation.hardware (or --hardware): {error}") from None
        available = cluster.node.gpus
        if launch.gpus_per_node is not None and launch.gpus_per_node > available:
            raise BadInput(
                f"launch.gpus_per_node: {launch.gpus_per_node} is too large; allowed: 1 to "
                f"{available}, the GPUs of a node of {cluster.name}"
            )
        calibration = _calibration(simulation, cluster)
        return cls(
            cluster,
            launch.gpus_per_node or available,
            simulation,
            calibration,
            _label(cluster, simulation, calibration),
        )

    def job(
        self, spec: RunSpec, power_limit_w: float | None, clock_limit_mhz: float | None
    ) -> SimulatedJob:
        """Return the simulator's job of a run, with the enforced limits.

        Raises
        ------
        WattlawError
            The workload has no profile.
        """
        enforced = {"power_limit_w": power_limit_w, "clock_limit_mhz": clock_limit_mhz}
        setting = spec.setting.model_copy(update=enforced)
        return simulation_job(
            spec.model_copy(update={"setting": setting}),
            self.cluster,
            calibration=self.calibration,
            gpus_per_node=self.gpus_per_node,
        )

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why a run can never be simulated, apart from its limits, or None."""
        if spec.workload.command is not None:
            return "a command cannot be simulated; workloads can"
        gpu, precision = self.cluster.gpu, spec.setting.precision
        if precision not in gpu.peak_tflops:
            return f"{gpu.name} does not have {precision}; it has {', '.join(gpu.peak_tflops)}"
        try:
            self.job(spec, None, None)
        except WattlawError as error:
            return str(error)
        return None

    def host(self, spec: RunSpec) -> str:
        """Return a host name for all nodes of a run together."""
        return "sim0001" if spec.nodes == 1 else f"sim[0001-{spec.nodes:04d}]"

    def reported_boards(self, gpus: int) -> list[str]:
        """Return the boards of a run with telemetry: the first, the last, two in between."""
        count, per_node = min(gpus, _REPORTED_BOARDS), self.gpus_per_node
        numbers = [round(i * (gpus - 1) / max(1, count - 1)) for i in range(count)]
        return [f"SIM-{number // per_node + 1:04d}-{number % per_node}" for number in numbers]

    @property
    def calibration_label(self) -> str:
        """Return whether the simulator is calibrated, and with which calibration."""
        return _calibration_label(self.calibration)


def _calibration(simulation: Simulation, cluster: Cluster) -> "Calibration | None":
    if simulation.calibration is None:
        return None
    from wattlaw.simulator.calibration import read_calibration

    try:
        return read_calibration(Path(simulation.calibration), cluster.gpu)
    except BadInput as error:
        raise BadInput(f"launch.simulation.calibration (or --calibration): {error}") from None


def _calibration_label(calibration: "Calibration | None") -> str:
    return "uncalibrated" if calibration is None else f"calibrated {calibration.digest}"


def _label(cluster: Cluster, simulation: Simulation, calibration: "Calibration | None") -> str:
    """Return the hardware's name with all settings that change its numbers.

    For a user's file the label has a digest of its contents, which may change.
    """
    name, details = str(simulation.hardware), ["simulated", _calibration_label(calibration)]
    if name not in (*library.cluster_names(), *library.gpu_names()):
        digest = hashlib.sha256(cluster.model_dump_json().encode()).hexdigest()[:8]
        name = f"{Path(name).stem[:80]} {digest}"
    if simulation.seed:
        details.append(f"seed {simulation.seed}")
    if simulation.critical_batch is not None:
        epochs = f"{simulation.epochs_to_target:g} epochs"
        details.append(f"critical batch {simulation.critical_batch:g}, {epochs}")
    return f"{name} ({', '.join(details)})"
