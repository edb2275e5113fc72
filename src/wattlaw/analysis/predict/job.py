"""From the runs of a store to the observations of a job, and back to the units of its runs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.series import are_imported_without_nodes
from wattlaw.analysis.metrics.comparable_runs import (
    NOT_DATA_PARALLEL,
    ComparableRuns,
    comparable_runs,
)
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.predict import reach
from wattlaw.analysis.predict.host_power import HostPower
from wattlaw.analysis.predict.intervals import Components, Prediction, pair
from wattlaw.analysis.predict.observation import Floats, Observation
from wattlaw.analysis.predict.parameters import LEARNED, hardware_priors
from wattlaw.analysis.predict.peak_memory import Memory, memory_of
from wattlaw.analysis.predict.posterior import fit
from wattlaw.analysis.predict.predictions import predict
from wattlaw.analysis.predict.run_settings import merged, observations_of
from wattlaw.common.errors import NothingToRecommend, Refused
from wattlaw.common.formatting import plural
from wattlaw.common.machine import cores_of
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting, layout_of

if TYPE_CHECKING:
    from wattlaw.hardware.cluster import Cluster


SHARED_CORES = Caution(
    "cores-shared",
    "The workers have more threads than the machine has cores, which slows them by an amount that "
    "the model does not contain; measure this setting.",
)


MEMORY_ASSUMED = Caution(
    "memory-assumed",
    "No run shows how much memory it needs: what fits follows from the sizes of the network alone.",
)


@dataclass(frozen=True)
class Job:
    workload: str
    hardware: str | None
    #: One for each run. If the samples of the unit are unknown, a unit counts as one sample.
    observations: tuple[Observation, ...]
    unit: str  # of the runs' times: epoch | sample | step | run
    samples_per_unit: float | None  # of an epoch, or 1 of a sample; None if unknown
    node_gpus: int | None  # the most that a run had on a node; None if runs do not name their nodes
    #: The most workers of a node that have a core for each of their threads; None with GPUs.
    node_workers: int | None
    gradient_bytes: float | None  # that the ranks exchange in a step; None if not recorded
    energy_is: str | None  # such as ``gpu+cpu, counter``; None without energy
    #: Power of what the energy counts beside GPUs; None if that is nothing, or if no GPUs are
    #: counted. The power of an observation is then that of everything counted, per worker.
    host: HostPower | None
    warnings: tuple[Caution, ...]
    board: reach.Ranges = field(default_factory=dict)
    worker: str = "GPU"  # what a "gpu" is called
    #: The transformer that was trained, which other layouts need; None if it is not known.
    network: Network | None = None
    #: Whether all runs are of a script that trains on one GPU alone, as far as they show.
    is_single: bool = False
    memory: Memory | None = None  # that settings need, where it is known what of them needs it

    @property
    def default_counts(self) -> Sequence[int]:
        """The GPU counts to predict; none for the measured ones and their doublings."""
        return (1,) if self.is_single else ()

    @property
    def fastest(self) -> Setting:
        times: dict[Setting, list[float]] = {}
        for item in self.observations:
            time_s = item.healthy_step_s / item.setting.samples
            times.setdefault(item.setting, []).append(time_s)
        return min(times, key=lambda setting: sum(times[setting]) / len(times[setting]))

    def shares_cores(self, setting: Setting) -> bool:
        return self.node_workers is not None and (
            setting.gpus > self.node_workers * (setting.nodes or 1)
        )

    @property
    def settings(self) -> list[Setting]:
        return [item.setting for item in self.observations]

    def predict(
        self,
        settings: Sequence[Setting],
        *,
        baseline: Setting | None = None,
        epochs: float | None = None,
        cluster: "Cluster | None" = None,
        seed: int = 0,
    ) -> list[Prediction]:
        """Return the predictions of settings, in the units that the runs have.

        Priors are those of the cluster, if one is given. Epochs are refused where the time of an
        epoch is not known.
        """
        if epochs is not None and self.unit != "epoch":
            raise Refused(f"epochs: what was measured is a {self.unit}, not an epoch")
        priors = LEARNED
        if cluster is not None:
            priors = hardware_priors(cluster, self.gradient_bytes, self.observations)
        rows = predict(
            self.seen_for(settings), settings, seed=seed, baseline=baseline or self.fastest,
            samples_per_epoch=self._per_unit, epochs=epochs, workload=self.workload,
            hardware=self.hardware, host=self.host, energy_is=self.energy_is, priors=priors,
        )  # fmt: skip
        return self._with_memory([self._in_units(row) for row in rows], seed)

    def amounts(self, settings: Sequence[Setting], seed: int = 0) -> tuple[Floats, Floats | None]:
        """Return draws of time and energy of a unit in a future run, shape (draws, settings)."""
        posterior = fit(self.seen_for(settings), seed=seed)
        steps, times, powers = posterior.runs(settings)
        samples = np.array([item.samples for item in settings])
        times = times if self._per_unit is None else times * (self._per_unit / samples)
        fixed_s = 0.0 if posterior.epoch_s is None else posterior.epoch_s[:, None]
        if powers is None or steps.idle_w is None:
            return times + fixed_s, None
        gpus = np.array([item.gpus for item in settings])
        energies = gpus * (times * powers + fixed_s * steps.idle_w)
        if self.host is not None:
            host_w = self.host.draws(settings, posterior.draws, seed)
            energies = energies + (times + fixed_s) * host_w
        return times + fixed_s, energies

    def unit_time_s(self, observation: Observation) -> float:
        if self._per_unit is None:
            return observation.step_time_s
        return observation.step_time_s * self._per_unit / observation.setting.samples

    def means(
        self, settings: Sequence[Setting], draws: int
    ) -> tuple[Floats, Floats | None, Floats, Floats | None]:
        """Return draws of the mean time and energy of a unit, shape (draws, settings).

        After them, the standard deviations of the logarithms of a run's time and energy.
        """
        posterior = fit(self.seen_for(settings))
        times, noise, powers, power_noise = posterior.means(settings, draws)
        if self._per_unit is not None:
            times = times * np.array([self._per_unit / item.samples for item in settings])
        if (fixed_s := posterior.epoch_s) is not None:
            every = max(1, posterior.draws // draws)  # as in ``Posterior.means``
            times = times + fixed_s[::every, None]
        if powers is None or power_noise is None:
            return times, None, noise, None
        watts = powers * np.array([item.gpus for item in settings])
        if self.host is not None:
            watts = watts + self.host.draws(settings, len(times), posterior.seed)
        return times, times * watts, noise, np.hypot(noise, power_noise)

    def seen_for(self, settings: Sequence[Setting]) -> tuple[Observation, ...]:
        """Return the observations, with the network if a setting has a layout that did not run."""
        known = {layout_of(item) for item in self.settings}
        if self.observations[0].network or known.issuperset(map(layout_of, settings)):
            return self.observations
        if self.network is None:
            raise _needs_network(self.workload)
        return tuple(replace(item, network=self.network) for item in self.observations)

    def fits(self, settings: Sequence[Setting], seed: int = 0) -> list[float | None]:
        """Return the probability that each setting fits into memory; None where nothing says it."""
        drawn = None
        if self.memory is not None and settings and all(item.micro_batch for item in settings):
            drawn = self.memory.fits(settings, seed)
        return [None] * len(settings) if drawn is None else drawn.mean(0).tolist()

    def _with_memory(self, rows: list[Prediction], seed: int) -> list[Prediction]:
        settings = [row.setting for row in rows]
        if self.memory is None or not all(item.micro_batch for item in settings):
            return rows
        bytes_by_row, chances = self.memory.peaks_bytes(settings, seed).T, self.fits(settings, seed)
        assumed = () if self.memory.peaks else (MEMORY_ASSUMED,)
        return [
            replace(row, **pair("peak_memory_bytes", draws), fits=chance,
                    out_of_memory=self.memory.ran.get(row.setting) is False,
                    p_faster=row.p_faster and row.p_faster * (1.0 if chance is None else chance),
                    warnings=(*row.warnings, *assumed))
            for row, draws, chance in zip(rows, bytes_by_row, chances, strict=True)
        ]  # fmt: skip

    @property
    def _per_unit(self) -> float | None:
        return None if self.unit == "step" else self.samples_per_unit or 1.0

    def _in_units(self, row: Prediction) -> Prediction:
        """Remove values of samples, steps and epochs that are not known."""
        unknown: list[str] = []
        far = reach.cautions(row.setting, self.settings, self.board)
        shared = [SHARED_CORES] if self.shares_cores(row.setting) else []
        changes: dict[str, Any] = {"warnings": (*row.warnings, *far, *shared)}
        if self.unit == "run":
            changes |= {"train_time_s": row.epoch_time_s, "train_time_s_ci": row.epoch_time_s_ci}
        if self.unit != "epoch":
            unknown.append("epoch_time_s")
        if self.samples_per_unit is None:
            unknown += ["time_per_sample_s", "energy_per_sample_j"]
        if self.samples_per_unit is None and self.unit != "step":
            unknown.append("step_time_s")
            factor = (row.epoch_time_s or math.nan) / (row.step_time_s or math.nan)
            parts = row.components.to_dict()
            changes["components"] = Components(**{name: parts[name] * factor for name in parts})
        if not _knows_gpus(self.energy_is, self.host is not None):
            unknown.append("power_per_gpu_w")
        missing = {f"{name}{end}": None for name in unknown for end in ("", "_ci")}
        return replace(row, **changes | missing)


def jobs_of(
    table: pd.DataFrame, workload: str, gpus_per_node: int | None = None,
    stored: pd.DataFrame | None = None,
) -> list[Job]:  # fmt: skip
    """Return the jobs of a workload in a table of ``run_metrics``, one for each kind of hardware.

    Runs that emulate the local batch of other GPUs count as what they are: few GPUs at a small
    batch. ``gpus_per_node`` is for imported runs without a number of nodes, whose placement is not
    known without it. ``stored`` has all runs, for what fits into memory. ``Refused`` if no run is
    done, workers do not cooperate, or runs have layouts and the network is not known.
    """
    # The time of a sample is comparable between shares of the data; that of an epoch is not.
    largest = table["dataset_fraction"].groupby(table["workload"]).transform("max")
    fraction = largest.where(table["time_per_sample_s"].notna(), table["dataset_fraction"])
    table = table.assign(emulated_gpus=None, dataset_fraction=fraction)
    comparable = comparable_runs(table, workload)
    unknown = comparable.rows["layout"].isna()
    if other := sorted({*comparable.rows["parallelism"][unknown].dropna()} & {*NOT_DATA_PARALLEL}):
        text = f"{other[0]} parallelism of unknown sizes; predictions need tp, pp, cp and ep"
        raise NothingToRecommend(f"{workload}: {text}")
    return [
        job_of(_with_one_profile(replace(comparable, rows=rows)), gpus_per_node, stored)
        for _, rows in comparable.rows.groupby("hardware", dropna=False)
    ]


def _needs_layouts(rows: pd.DataFrame) -> bool:
    """Return whether runs have layouts that share the model or differ."""
    texts = rows["layout"].dropna().unique()
    layouts = [{**json.loads(text), "gradient_accumulation": 1} for text in texts]
    layouts += [{"gradient_accumulation": 1}] * bool(rows["layout"].isna().any())
    share_model = any({"tp", "pp", "cp", "ep"} & layout.keys() for layout in layouts)
    return share_model or any(layout != layouts[0] for layout in layouts)


def _needs_network(workload: str) -> NothingToRecommend:
    return NothingToRecommend(
        f"{workload}: to predict parallel layouts, state the sizes of the network as model of the "
        "workload in the study"
    )


def _with_one_profile(comparable: ComparableRuns) -> ComparableRuns:
    profiles = comparable.rows["power_profile"]
    if profiles.nunique(dropna=False) <= 1:
        return comparable
    own = profiles.isna() if profiles.isna().any() else profiles == profiles.mode()[0]
    text = (
        f"{plural(int((~own).sum()), 'run')} with another power profile "
        f"({', '.join(sorted(profiles[~own].dropna().unique()))}) are excluded."
    )
    warnings = (*comparable.warnings, Caution("power-profiles-differ", text))
    return replace(comparable, rows=comparable.rows[own], warnings=warnings)


def job_of(
    comparable: ComparableRuns, gpus_per_node: int | None = None,
    stored: pd.DataFrame | None = None,
) -> Job:  # fmt: skip
    rows, warnings = comparable.rows, list(comparable.warnings)
    has_batch = rows[["local_batch", "global_batch"]].notna().any(axis=1)
    if has_batch.any() and not has_batch.all():
        without = int((~has_batch).sum())
        text = f"{without} runs without a known batch are excluded."
        warnings.append(Caution("batch-unknown", text))
        rows = rows[has_batch]
    if are_imported_without_nodes(rows):
        nodes = None if gpus_per_node is None else np.ceil(rows["gpus"] / gpus_per_node)
        rows = rows.assign(nodes=nodes)
    samples = rows["samples_per_epoch"].dropna()
    known = 1.0 if comparable.unit == "sample" else None
    if comparable.unit == "epoch" and len(samples):
        known = float(samples.max())  # of the largest share of the data
    placed = rows[rows["nodes"].notna()]
    hardware = rows["hardware"].iloc[0]
    cores, threads = cores_of(str(hardware)), rows["threads_per_worker"].max()
    gradients = rows["gradient_bytes"].dropna()
    watts = rows["power_per_gpu_w"]
    # The power of what the energy counts beside GPUs; missing if it does not count them.
    scope = _scope(comparable.energy_is or "")
    rest_w = ((rows["energy_j"] - rows["gpu_energy_j"]) / rows["time_s"]).astype(float)
    if scope == ["gpu"] or {"gpu", "module", "node"}.isdisjoint(scope):
        rest_w = rest_w * np.nan
    if not _knows_gpus(comparable.energy_is, bool((rest_w > 0).any())):
        watts = rows["energy_j"] / (rows["time_s"] * rows["gpus"])
    networks, workload = rows["network"].unique(), str(rows["workload"].iloc[0])
    is_known = len(networks) == 1 and pd.notna(networks[0])
    network = Network.model_validate_json(str(networks[0])) if is_known else None
    observations = observations_of(rows, watts, comparable.unit)
    if _needs_layouts(rows):
        if network is None:
            raise _needs_network(workload)
        observations = [replace(item, network=network) for item in observations]
    pairs = zip(observations, rest_w, strict=True)
    hosts = [(item.setting, rest) for item, rest in pairs if rest > 0]
    memory = None
    if stored is not None:  # runs of the job, whatever their status
        done = comparable.rows
        alike = stored["workload"].isin(done["workload"]) & stored["options"].isin(done["options"])
        alike &= stored["hardware"].isin(done["hardware"]) | stored["hardware"].isna()
        memory = memory_of(stored[alike])
    return Job(
        workload=workload,
        hardware=None if pd.isna(hardware) else str(hardware),
        observations=merged(observations),
        unit=comparable.unit,
        samples_per_unit=known,
        node_gpus=None if placed.empty else math.ceil((placed["gpus"] / placed["nodes"]).max()),
        node_workers=None if cores is None or pd.isna(threads) else int(cores // threads),
        gradient_bytes=None if gradients.empty else float(gradients.iloc[0]),
        energy_is=comparable.energy_is,
        host=HostPower.fit(*map(list, zip(*hosts, strict=True))) if hosts else None,
        warnings=tuple(warnings),
        worker=comparable.worker,
        network=network,
        is_single=bool((rows["gpus"] == 1).all() and (rows["parallelism"] == "none").all()),
        memory=memory,
    )


def _knows_gpus(energy_is: str | None, has_rest: bool) -> bool:
    return energy_is is None or has_rest or "gpu" in _scope(energy_is)


def _scope(energy_is: str) -> list[str]:
    return energy_is.partition(",")[0].split("+")
