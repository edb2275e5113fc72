"""What Slurm shows of the nodes of a study, read once before its jobs are queued."""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.nvidia.architectures import no_kernels_reason
from wattlaw.running.boards import Board, memory_warnings, named_board
from wattlaw.running.launcher import ResourcesBusy
from wattlaw.running.slurm import commands
from wattlaw.running.slurm.commands import Unreachable
from wattlaw.running.slurm.missing_packages import Environment, probe
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study, WorkloadSpec
from wattlaw.workloads import catalogue


class Nodes:
    """The nodes on which the jobs of a study would run; what Slurm does not show is unknown."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._python = launch.slurm.python or sys.executable
        partition = launch.slurm.options.get("partition")
        self._partition = str(partition) if partition else None

    @cached_property
    def boards(self) -> tuple[Board, ...]:
        """Return the boards: of the study's label, of ``gres``, or of the partition.

        None are known if one of them is not.
        """
        gres = self._launch.slurm.gres
        if gres is None:
            return ()
        names = [self._launch.hardware or "", gres.partition(":")[2]]
        for name in filter(None, names):
            if (board := named_board(name)) is not None:
                return (board,)
        types = {kind for text in self._gres_lists for kind in commands.gres_types(text, gres)}
        found = [named_board(kind) for kind in sorted(types)]
        return tuple(board for board in found if board) if all(found) else ()

    @cached_property
    def _gres_lists(self) -> list[str]:
        if self._launch.slurm.gres is None or shutil.which("sinfo") is None:
            return []
        try:
            return commands.gres_lists(self._partition)
        except (Unreachable, NotAvailable, ResourcesBusy):
            return []  # the start says so

    def missing(self, study: Study) -> list[str]:
        """Return what the Python of the jobs lacks, if no line of ``setup`` may still load it."""
        return [] if study.launch.slurm.setup else self._missing(study.workloads)

    def warnings(self, specs: Sequence[RunSpec]) -> Iterator[str]:
        slurm, workers = self._launch.slurm, self._launch.gpus_per_node
        where = f"partition {self._partition}" if self._partition else "this cluster"
        gres = slurm.gres or ""
        most = max((commands.parse_gres(text, gres) for text in self._gres_lists), default=0)
        if most and workers is not None and workers > most:
            yield (
                f"launch.gpus_per_node is {workers}; a node of {where} has at most {most} {gres}, "
                "so Slurm refuses jobs with more"
            )
        if slurm.cpus_per_worker is None and self._assigns_cores_by_task():
            yield (
                f"a job on {where} gets one core per node for all its workers and their data, "
                "because it requests no number of cores; set launch.slurm.cpus_per_worker"
            )
        yield from memory_warnings(specs, self.boards)
        workloads = [spec.workload for spec in specs]
        environment = self._environment(workloads)
        version = (environment and environment.torch) or ""
        if most and version.endswith("+cpu"):
            yield (
                f"jobs request {gres}, but torch {version} uses no GPU ({self._python}); install "
                "another build of torch, or set launch.slurm.gres to null for nodes without GPUs"
            )
        for sentence in self._missing(workloads) if slurm.setup else ():
            yield f"unless launch.slurm.setup changes it: {sentence}"

    def _missing(self, workloads: Iterable[WorkloadSpec]) -> list[str]:
        environment = self._environment(workloads)
        if environment is None:
            return []
        missing, version = [*environment.missing], environment.torch or ""
        reasons = [
            board.capability
            and no_kernels_reason(board.name, board.capability, version, environment.architectures)
            for board in self.boards
        ]
        if reasons and all(reasons):
            missing.append(str(reasons[0]))
        return [f"{sentence} ({self._python})" for sentence in missing]

    def _environment(self, workloads: Iterable[WorkloadSpec]) -> Environment | None:
        """Return what the Python of the jobs has; None if it needs nothing that this one lacks."""
        names = {spec.name for spec in workloads if catalogue.is_registered(spec)}
        if not names and self._python == sys.executable:
            return None
        kernels = any(board.capability for board in self.boards)
        found = probe(self._python, tuple(sorted(names)), kernels=kernels and bool(names))
        return found if names or found is None else Environment(found.missing)  # commands: no torch

    def _assigns_cores_by_task(self) -> bool:
        """Return whether a job gets one core per task, and so per node, by default."""
        if self._launch.slurm.options.get("exclusive") or shutil.which("scontrol") is None:
            return False
        try:
            config = commands.configuration()
            partitions = commands.partitions(self._partition)
        except (Unreachable, NotAvailable, ResourcesBusy):
            return False
        by_core = re.search("CR_(CPU|CORE)", config.get("SelectTypeParameters", ""), re.IGNORECASE)
        is_exclusive = all(row.get("OverSubscribe") == "EXCLUSIVE" for row in partitions)
        defaults = [
            config.get("JobDefaults", ""),
            *(row.get("JobDefaults", "") for row in partitions),
        ]
        has_default = any("DefCpuPerGPU" in text for text in defaults)
        return bool(by_core) and not is_exclusive and not has_default
