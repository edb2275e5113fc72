"""From the runs of a store to the observations of a job, and back to the units of its runs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.advice.comparable_runs import comparable_runs
from wattlaw.analysis.prediction.predict import predict
from wattlaw.analysis.prediction.results import Components, Prediction
from wattlaw.analysis.prediction.settings import Observation, TrainingSetting
from wattlaw.analysis.result import Caution, Result
from wattlaw.analysis.series import NOT_DATA_PARALLEL
from wattlaw.errors import BadInput, Refused

_LIMITS = ("power_limit_w", "clock_limit_mhz")
_IMPORTED = "imported"
#: Settings that a baseline may name.
BASELINE = ("gpus", "nodes", "local_batch", "global_batch", *_LIMITS)
#: With more runs, the repeats of a setting count as one observation: inference takes time.
_MOST = 100
#: Without GPU counts, predictions go up to this multiple of the largest measured one.
_REACH = 4


@dataclass(frozen=True)
class Job:
    """The runs of one workload on one kind of hardware, as the prediction model needs them.

    Parameters
    ----------
    observations
        One for each run. If the samples of the unit are unknown, a unit counts as one sample.
    unit
        What the runs' times are of: ``epoch``, ``sample``, ``step`` or ``run``.
    samples_per_unit
        The samples of an epoch or of a sample (1); None if they are unknown.
    node_gpus
        The most GPUs that a run had on one node; None if the runs do not name their nodes.
    """

    workload: str
    hardware: str | None
    observations: tuple[Observation, ...]
    unit: str
    samples_per_unit: float | None
    node_gpus: int | None
    warnings: tuple[Caution, ...]

    @property
    def usual(self) -> dict[str, Any]:
        """Return the batch (``local_batch`` or ``global_batch``), limits and so on of most runs.

        The batch is the global one if runs on several GPU counts share it.
        """
        settings = [item.setting for item in self.observations]
        names = ("precision", "gradient_accumulation", *_LIMITS)
        values = {name: _most(getattr(item, name) for item in settings) for name in names}
        best: dict[str, tuple[int, float | None]] = {}
        for name in ("local_batch", "global_batch"):
            gpus_of: dict[float, set[int]] = {}
            for item in settings:
                if (batch := getattr(item, name)) is not None:
                    gpus_of.setdefault(batch, set()).add(item.gpus)
            most = max(gpus_of, key=lambda batch: len(gpus_of[batch]), default=None)
            best[name] = (0 if most is None else len(gpus_of[most]), most)
        is_global = best["global_batch"][0] > best["local_batch"][0]
        kept = "global_batch" if is_global else "local_batch"
        return values | {kept: best[kept][1]}

    @property
    def fastest(self) -> TrainingSetting:
        """Return the measured setting with the least time per sample."""
        times: dict[TrainingSetting, list[float]] = {}
        for item in self.observations:
            time_s = item.step_time_s / item.setting.samples
            times.setdefault(item.setting, []).append(time_s)
        return min(times, key=lambda setting: sum(times[setting]) / len(times[setting]))

    def settings(
        self,
        gpus: Sequence[int] = (),
        *,
        nodes: Sequence[int] = (),
        gpus_per_node: int | None = None,
        local_batch: Sequence[float] = (),
        global_batch: Sequence[float] = (),
        power_limit_w: Sequence[float | None] = (),
        clock_limit_mhz: Sequence[float | None] = (),
    ) -> list[TrainingSetting]:
        """Return all combinations of values.

        What is not named has the value of most runs (``usual``); GPU counts are the measured ones
        and their doublings up to four times the largest; nodes are the fewest.

        Raises
        ------
        BadInput
            Both batches are given, a global batch cannot be divided by the GPUs, or a value is out
            of its range.
        """
        if local_batch and global_batch:
            raise BadInput("given local_batch and global_batch; allowed: one of them")
        usual = self.usual
        rule = "global_batch" if global_batch else "local_batch"
        batches: Sequence[float | None] = global_batch or local_batch
        if not batches:
            rule = "global_batch" if "global_batch" in usual else "local_batch"
            batches = [usual[rule]]
        values = {
            "precision": usual["precision"],
            "gradient_accumulation": usual["gradient_accumulation"],
        }
        power_limit_w = power_limit_w or [usual["power_limit_w"]]
        clock_limit_mhz = clock_limit_mhz or [usual["clock_limit_mhz"]]
        on_nodes: Sequence[int | None] = nodes or [None]
        settings = []
        for count, on, batch, watts, mhz in product(
            gpus or self._counts(), on_nodes, batches, power_limit_w, clock_limit_mhz
        ):
            local = batch if rule == "local_batch" or batch is None else batch / count
            if local is not None and local != int(local):
                if not gpus:
                    continue
                raise BadInput(
                    f"global_batch: given {batch:g} for {count} GPUs; allowed: a multiple of them"
                )
            settings.append(
                self._placed(count, on, gpus_per_node, local_batch=local, power_limit_w=watts,
                             clock_limit_mhz=mhz, **values)
            )  # fmt: skip
        return settings

    def baseline(self, values: Mapping[str, Any] | None) -> TrainingSetting:
        """Return the setting that predictions are compared with; without values, the fastest.

        Raises
        ------
        BadInput
            A name is not in ``BASELINE``, or the GPUs are missing.
        """
        if values is None:
            return self.fastest
        if unknown := set(values) - {*BASELINE}:
            raise BadInput(
                f"baseline: unknown setting {min(unknown)!r}; allowed: {', '.join(BASELINE)}"
            )
        if values.get("gpus") is None:
            raise BadInput("baseline: gpus is missing; allowed: such as gpus=4,global_batch=256")
        lists = {name: [value] for name, value in values.items() if value is not None}
        [setting] = self.settings(**lists)  # type: ignore[arg-type]
        return setting

    def predict(
        self,
        settings: Sequence[TrainingSetting],
        *,
        baseline: TrainingSetting | None = None,
        epochs: float | None = None,
        seed: int = 0,
    ) -> list[Prediction]:
        """Return the predictions of settings, in the units that the runs have.

        Raises
        ------
        Refused
            Epochs are given, and the time of an epoch is not known.
        """
        if epochs is not None and self.unit != "epoch":
            raise Refused(f"epochs: what was measured is a {self.unit}, not an epoch")
        per_unit = None if self.unit == "step" else self.samples_per_unit or 1.0
        rows = predict(
            self.observations, settings, seed=seed, baseline=baseline or self.fastest,
            samples_per_epoch=per_unit, epochs=epochs, workload=self.workload,
            hardware=self.hardware,
        )  # fmt: skip
        return [self._in_units(row) for row in rows]

    def _in_units(self, row: Prediction) -> Prediction:
        """Remove values of samples, steps and epochs that are not known."""
        unknown: list[str] = []
        changes: dict[str, Any] = {}
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
        missing = {f"{name}{end}": None for name in unknown for end in ("", "_ci")}
        return replace(row, **changes | missing)

    def _counts(self) -> list[int]:
        measured = {item.setting.gpus for item in self.observations}
        top, counts = _REACH * max(measured), set(measured)
        for count in measured:
            while (count := 2 * count) <= top:
                counts.add(count)
        return sorted(counts)

    def _placed(
        self, gpus: int, nodes: int | None, gpus_per_node: int | None, **values: Any
    ) -> TrainingSetting:
        most = gpus_per_node or self.node_gpus
        if nodes is not None:
            if gpus_per_node is not None and gpus > nodes * gpus_per_node:
                raise BadInput(
                    f"nodes: given {nodes} of {gpus_per_node} GPUs for {gpus} GPUs; allowed: at "
                    f"least {math.ceil(gpus / gpus_per_node)}"
                )
            return TrainingSetting(gpus, nodes=nodes, **values)
        if most is None:
            return TrainingSetting(gpus, **values)
        return TrainingSetting.packed(gpus, most, **values)


@dataclass(frozen=True)
class Predictions(Result):
    """Predictions, one for each setting and kind of hardware.

    ``baselines`` has the setting that ``p_faster`` compares with, for each kind of hardware.
    """

    rows_field = "rows"

    rows: tuple[Prediction, ...]
    baselines: tuple[tuple[str | None, TrainingSetting], ...]
    warnings: tuple[Caution, ...]


def predict_workload(
    table: pd.DataFrame,
    workload: str,
    *,
    baseline: Mapping[str, Any] | None = None,
    epochs: float | None = None,
    seed: int = 0,
    **values: Any,
) -> Predictions:
    """Return the predictions of a workload, for each kind of hardware.

    Parameters
    ----------
    table
        Of ``metrics.run_metrics``.
    baseline
        The setting that ``p_faster`` compares with (``Job.baseline``).
    values
        Of ``Job.settings``.
    """
    rows: list[Prediction] = []
    baselines = []
    warnings: dict[Caution, None] = {}
    for job in jobs_of(table, workload, values.get("gpus_per_node")):
        settings, compared = job.settings(**values), job.baseline(baseline)
        if not settings:
            raise BadInput("global_batch: no GPU count divides it; set --gpus or --local-batch")
        baselines.append((job.hardware, compared))
        rows += job.predict(settings, baseline=compared, epochs=epochs, seed=seed)
        warnings |= dict.fromkeys(job.warnings)
    warnings |= dict.fromkeys(warning for row in rows for warning in row.warnings)
    return Predictions(tuple(rows), tuple(baselines), tuple(warnings))


def jobs_of(table: pd.DataFrame, workload: str, gpus_per_node: int | None = None) -> list[Job]:
    """Return the jobs of a workload, one for each kind of hardware.

    Parameters
    ----------
    table
        Of ``metrics.run_metrics``. Runs that emulate the local batch of other GPUs count as what
        they are: few GPUs at a small batch.
    gpus_per_node
        GPUs of a node, for imported runs without a number of nodes. Without it, their placement is
        not known.

    Raises
    ------
    Refused
        No run of the workload is done, its workers do not cooperate, or it is not data-parallel.
    """
    comparable = comparable_runs(table.assign(emulated_gpus=None), workload)
    rows = comparable.rows
    if other := sorted(set(rows["parallelism"].dropna()) & {*NOT_DATA_PARALLEL}):
        raise Refused(f"{workload}: {other[0]} parallelism; predictions are for data-parallel jobs")
    warnings = list(comparable.warnings)
    if rows["local_batch"].notna().any() and rows["local_batch"].isna().any():
        without = int(rows["local_batch"].isna().sum())
        text = f"{without} runs without a known batch are excluded."
        warnings.append(Caution("batch-unknown", text))
        rows = rows[rows["local_batch"].notna()]
    if (rows["launcher"] == _IMPORTED).all() and (rows["nodes"] == 1).all():
        # A table without nodes is imported with 1.
        nodes = None if gpus_per_node is None else np.ceil(rows["gpus"] / gpus_per_node)
        rows = rows.assign(nodes=nodes)
    jobs = []
    for hardware, of in rows.groupby("hardware", dropna=False):
        samples = of["samples_per_epoch"].dropna()
        known = 1.0 if comparable.unit == "sample" else None
        if comparable.unit == "epoch" and len(samples):
            known = float(samples.mode().max())
        placed = of[of["nodes"].notna()]
        most = (placed["gpus"] / placed["nodes"]).max()
        jobs.append(
            Job(
                workload=workload,
                hardware=None if pd.isna(hardware) else str(hardware),
                observations=_merged(
                    [_observation(row, comparable.unit) for row in of.to_dict("records")]
                ),
                unit=comparable.unit,
                samples_per_unit=known,
                node_gpus=None if placed.empty else math.ceil(most),
                warnings=tuple(warnings),
            )
        )
    return jobs


def _observation(row: Mapping[Any, Any], unit: str) -> Observation:
    def value(name: str) -> Any:
        return row[name] if pd.notna(row[name]) else None

    train = value("train")
    parts = json.loads(train).get("gradient_accumulation", 1) if isinstance(train, str) else 1
    nodes = value("nodes")
    setting = TrainingSetting(
        int(row["gpus"]),
        nodes=None if nodes is None else min(int(nodes), int(row["gpus"])),
        local_batch=None if unit == "step" else value("local_batch"),
        gradient_accumulation=int(parts),
        precision=value("precision"),
        power_limit_w=value("power_limit_w"),
        clock_limit_mhz=value("clock_limit_mhz"),
    )
    per_sample_s = value("time_per_sample_s")
    if unit == "step":
        step_time_s = row["step_time_s"]
    else:
        step_time_s = (per_sample_s or row["time_s"]) * setting.samples
    return Observation(setting, float(step_time_s), value("power_per_gpu_w"))


def _merged(observations: list[Observation]) -> tuple[Observation, ...]:
    """Return the observations; of very many, one with the geometric means for each setting."""
    if len(observations) <= _MOST:
        return tuple(observations)
    by_setting: dict[TrainingSetting, list[Observation]] = {}
    for item in observations:
        by_setting.setdefault(item.setting, []).append(item)
    return tuple(
        Observation(
            setting,
            geometric_mean([item.step_time_s for item in items]),
            None if any(item.power_per_gpu_w is None for item in items)
            else geometric_mean([item.power_per_gpu_w or 0.0 for item in items]),
        )
        for setting, items in by_setting.items()
    )  # fmt: skip


def _most(values: Any) -> Any:
    """Return the most frequent value, the first of equally frequent ones."""
    listed = list(values)
    return max(dict.fromkeys(listed), key=listed.count)
