"""What the runs of a study are simulated on: a cluster, its parameters, and its label."""

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
#: So many boards of a run are told of: more of the same would say nothing new.
_TOLD_BOARDS = 4


@dataclass(frozen=True)
class Machine:
    """A cluster on paper. It is handed to the processes that simulate."""

    cluster: Cluster
    gpus_per_node: int
    simulation: Simulation
    calibration: "Calibration | None"
    #: Name of the hardware and what else changes numbers; part of runs' identity.
    label: str

    @classmethod
    def from_launch(cls, launch: Launch) -> "Machine":
        """Return the machine of a study.

        Raises
        ------
        BadInput
            No hardware is named, what is named cannot be read, or its nodes have fewer GPUs than
            the study asks for.
        """
        asked = launch.simulation
        if asked.hardware is None:
            raise BadInput(
                "launch.simulation.hardware: given nothing; allowed: one of "
                f"{', '.join((*library.cluster_names(), *library.gpu_names()))}, or a file (or --hardware)"
            )
        try:
            cluster = library.read_cluster(asked.hardware)
        except BadInput as error:
            raise BadInput(f"launch.simulation.hardware (or --hardware): {error}") from None
        has = cluster.node.gpus
        if launch.gpus_per_node is not None and launch.gpus_per_node > has:
            raise BadInput(
                f"launch.gpus_per_node: given {launch.gpus_per_node}; allowed: 1 to {has}, the "
                f"GPUs of a node of {cluster.name}"
            )
        calibration = _calibration(asked, cluster)
        return cls(
            cluster,
            launch.gpus_per_node or has,
            asked,
            calibration,
            _label(cluster, asked, calibration),
        )

    def job(
        self, spec: RunSpec, power_limit_w: float | None, clock_limit_mhz: float | None
    ) -> SimulatedJob:
        """Return what the simulator is asked of a run, with the limits that are enforced.

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
        """Return why a run can never be simulated here, limits apart, or None."""
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
        """Return the name under which all nodes of a run are one host."""
        return "sim0001" if spec.nodes == 1 else f"sim[0001-{spec.nodes:04d}]"

    def reported_boards(self, gpus: int) -> list[str]:
        """Return the boards of a run that are told of: the first, the last, two in between."""
        told, per_node = min(gpus, _TOLD_BOARDS), self.gpus_per_node
        which = [round(i * (gpus - 1) / max(1, told - 1)) for i in range(told)]
        return [f"SIM-{one // per_node + 1:04d}-{one % per_node}" for one in which]

    @property
    def calibration_label(self) -> str:
        """Return whose parameters the simulator has, in a word or two."""
        return _calibration_label(self.calibration)


def _calibration(asked: Simulation, cluster: Cluster) -> "Calibration | None":
    if asked.calibration is None:
        return None
    from wattlaw.simulator.calibration_file import read_calibration

    try:
        return read_calibration(Path(asked.calibration), cluster.gpu)
    except BadInput as error:
        raise BadInput(f"launch.simulation.calibration (or --calibration): {error}") from None


def _calibration_label(calibration: "Calibration | None") -> str:
    return "uncalibrated" if calibration is None else f"calibrated {calibration.digest}"


def _label(cluster: Cluster, asked: Simulation, calibration: "Calibration | None") -> str:
    """Return the hardware's name, with all of a simulation that changes its numbers.

    A file of the user's own may change while its name stays: its contents are in the label.
    """
    name, told = str(asked.hardware), ["simulated", _calibration_label(calibration)]
    if name not in (*library.cluster_names(), *library.gpu_names()):
        digest = hashlib.sha256(cluster.model_dump_json().encode()).hexdigest()[:8]
        name = f"{Path(name).stem[:80]} {digest}"
    if asked.seed:
        told.append(f"seed {asked.seed}")
    if asked.critical_batch is not None:
        told.append(f"critical batch {asked.critical_batch:g}, {asked.epochs_to_target:g} epochs")
    return f"{name} ({', '.join(told)})"
