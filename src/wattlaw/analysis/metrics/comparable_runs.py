"""Select runs that can be compared: one job and unit, one kind of energy, one origin of values."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from wattlaw.analysis.metrics.groups import JSON_COLUMNS, differing_options, group_numbers
from wattlaw.analysis.metrics.metrics import SETTINGS, UNITS, missing_energy
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.metrics.variation import slow_nodes
from wattlaw.common.errors import NothingToRecommend, Refused
from wattlaw.common.formatting import names_text, plural
from wattlaw.common.text import join_names
from wattlaw.study.labels import group_label
from wattlaw.study.not_as_declared import (
    OTHER_BATCH,
    UNCOOPERATIVE,
    batch_texts,
    uncooperative_text,
)
from wattlaw.study.sources import MEASURED, ORIGINS, origin_of

TIME, ENERGY = "time_s", "energy_j"
#: What to do where runs are of several workloads.
NAME_ONE = "name one: --workload NAME (-w)"
#: The code of the warning that runs have no energy of the requested scope.
NO_SCOPE = "energy-scope-missing"
#: Kinds of parallelism in which the number of GPUs is not the number of copies of the model.
NOT_DATA_PARALLEL = ("deepspeed", "tensor", "pipeline")
#: Runs that differ in these columns are different jobs: they cannot be compared.
_JOB = ("options", "train", "dataset_fraction", "run_length")
#: Software whose releases change the time of a step. Of 24 layouts in Megatron-Bridge 26.02 and
#: 26.02.01 (``parallel_layouts.csv``), the times differ by a median of 1.7 %, one by 77 %.
RELEASES = (
    "torch", "cuda", "rocm", "nccl", "nvidia-nccl-cu13", "transformers", "accelerate", "deepspeed",
    "megatron-core", "flash-attn", "transformer-engine",
)  # fmt: skip
#: Why an epoch is not known, by unit, and what to do.
WHY_NO_EPOCH = {
    "sample": "the size of the data set is unknown; state the samples of a training as "
    "--total-samples or decide.total_samples, which changes no run",
    "step": "the batch and the size of the data set are unknown; set the batch in the sweep, and "
    "state the samples of a training as --total-samples or decide.total_samples",
    "run": "no training step was recorded, so that processes were measured from start to end, and "
    "how many epochs one trains is unknown; use {epochs} in the command's arguments, or mark its "
    "epochs",
}


def unanswered(warnings: Iterable[Caution], samples: float | None) -> tuple[Caution, ...]:
    """Return warnings without that of times of samples, where the samples to train are stated."""
    return tuple(item for item in warnings if samples is None or item.code != "per-sample")


def uncooperative(table: pd.DataFrame) -> pd.Series:
    """Say of each row whether several workers each trained a model of their own."""
    return table["workers_cooperate"].eq(other=False) & (table["gpus"] > 1)


#: Columns that only runs with GPUs have.
_OF_GPUS = ["sm_util_mean", "gpu_energy_j", "gpu_memory_bytes"]
#: Names of GPUs, such as ``NVIDIA A100-SXM4-40GB`` or ``T4``.
_GPU_NAME = re.compile(
    r"\b(?:[LPT]4|[ABHKLMPV]\d{2,3}[A-Z]?|G[BH]\d00|MI\d{2,3}[A-Z]?|RTX\w*|GTX|TITAN|Tesla|GeForce|"
    r"Quadro|Radeon|GPUs?)\b"
)


def worker_noun(runs: pd.DataFrame, label: str | None = None) -> str:
    """Return what a "gpu" of runs is called: GPU if one was measured or is named, else worker.

    ``runs`` may have failed or be none; ``label`` is the hardware that their study names.
    """
    is_measured = runs.filter(_OF_GPUS).notna().any(axis=None)
    is_named = any(_GPU_NAME.search(str(name)) for name in (*runs["hardware"].unique(), label))
    return "GPU" if is_measured or is_named else "worker"


@dataclass(frozen=True)
class ComparableRuns:
    """Rows of ``run_metrics`` that can be compared: one unit, one kind of energy or none.

    ``slow_log`` is how much higher a run's log time is for a slow node that is named.
    """

    rows: pd.DataFrame
    unit: str
    energy_is: str | None
    worker: str  # the noun for what "gpus" counts: GPU or worker
    warnings: tuple[Caution, ...]
    left_out: Mapping[str, int]  # the number of runs by the reason, a phrase that follows it


def comparable_runs(table: pd.DataFrame, workload: str) -> ComparableRuns:
    """Return the runs of a workload that advice may compare.

    Measured runs are kept, else replayed, else simulated ones; the unit of most runs; of several
    variants of the job (options, training loop, share of the data set, length of a run), the one
    with the largest share of the data, then with the most runs. Of energies that count different
    devices, those of the most settings are kept; the other runs keep their times only.
    Refused if no run of the workload is done, or the workers of no run cooperate.
    """
    rows = table[table["workload"] == workload]
    if rows.empty:
        workloads = sorted(str(name) for name in table["workload"].dropna().unique())
        if not workloads:
            raise NothingToRecommend(f"no done runs of workload {workload!r}; no run is done")
        text = f"no done runs of workload {workload!r}; there are runs of: {join_names(workloads)}"
        raise Refused(f"{text}; {NAME_ONE}")
    choice = _Choice(rows)
    choice.keep_one_origin()
    choice.keep_as_stated()
    unit = choice.keep_one_unit()
    choice.keep_one_variant()
    energy_is = choice.keep_one_energy()
    slow, slow_log = slow_nodes(choice.rows)
    rows, slower = choice.rows.assign(slow_log=slow_log), [item.caution for item in slow]
    warnings = (*choice.warnings, *slower, *batch_cautions(rows), *scope_cautions(rows),
                *release_cautions(rows))  # fmt: skip
    worker = worker_noun(rows)
    return ComparableRuns(rows, unit, energy_is, worker, warnings, choice.left_out)


def batch_cautions(table: pd.DataFrame) -> list[Caution]:
    runs = table.dropna(subset="global_batch_declared").to_dict("records")
    return [Caution(OTHER_BATCH, text) for text in batch_texts(runs)]


def release_cautions(rows: pd.DataFrame) -> list[Caution]:
    """Name the packages whose versions differ between runs that are compared."""
    versions: dict[str, set[str]] = {}
    for text in rows["software"].dropna().unique():
        for name, version in json.loads(text).items():
            versions.setdefault(name, set()).add(version)
    differ = [
        f"{name} ({', '.join(sorted(versions[name]))})"
        for name in RELEASES if len(versions.get(name, ())) > 1
    ]  # fmt: skip
    text = f"The runs differ in the versions of {join_names(differ)}: differences may be theirs."
    return [Caution("releases-differ", text)] if differ else []


def scope_cautions(table: pd.DataFrame) -> list[Caution]:
    text = missing_energy(table)
    return [] if text is None else [Caution(NO_SCOPE, f"{text}.")]


@dataclass
class _Choice:
    rows: pd.DataFrame
    warnings: list[Caution] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def warn(self, code: str, text: str) -> None:
        self.warnings.append(Caution(code, text))

    def keep_one_origin(self) -> None:
        origins = self.rows["launcher"].map(origin_of)
        kept = min(origins, key=ORIGINS.index)
        if kept != MEASURED:
            self.warn(kept, f"All times and energies are {kept}, not measured.")
        for other, count in origins[origins != kept].value_counts().items():
            text = f"{count} {other} runs are excluded; only {kept} runs count."
            self.warn(f"{other}-excluded", text)
            self.left_out[str(other)] = int(count)
        self.rows = self.rows[origins == kept]

    def keep_as_stated(self) -> None:
        emulated, alone = self.rows["emulated_gpus"].notna(), uncooperative(self.rows)
        if count := int(emulated.sum()):
            text = f"{plural(count, 'run')} that emulate more GPUs are excluded."
            self.warn("emulated-excluded", text)
            self.left_out["that emulate more GPUs"] = count
        if count := int(alone.sum()):
            self.warn(UNCOOPERATIVE, uncooperative_text(count, set(self.rows["workload"])))
            self.left_out["whose workers do not cooperate"] = int((alone & ~emulated).sum())
        self.rows = self.rows[~(emulated | alone)]
        if self.rows.empty:
            raise NothingToRecommend(" ".join(str(warning) for warning in self.warnings))
        if kinds := sorted(set(self.rows["parallelism"].dropna()) & {*NOT_DATA_PARALLEL}):
            text = f"The runs use {names_text(kinds)} parallelism: laws are for data-parallel jobs"
            if self.rows["network"].isna().any():
                text += ", and without the sizes of the network no other setting is predicted"
            self.warn("not-data-parallel", f"{text}.")

    def keep_one_unit(self) -> str:
        units = self.rows["unit"]
        unit = min(UNITS, key=lambda name: (-int((units == name).sum()), UNITS.index(name)))
        for other, left in self.rows[units != unit].groupby("unit"):
            names = ", ".join(left["run_id"].iloc[:3]) + (", ..." if len(left) > 3 else "")
            text = (
                f"{plural(len(left), 'run')} ({names}) are known per {other} only and are "
                f"excluded; this advice is per {unit}."
            )
            self.warn("units-differ", text)
            self.left_out[f"known per {other} only"] = len(left)
        self.rows = self.rows[units == unit]
        if unit != "epoch":
            text = f"Times and energies are of one {unit}, not of an epoch: {WHY_NO_EPOCH[unit]}."
            self.warn(f"per-{unit}", text)
        if (self.rows["basis"] == "run").any():
            divided = ", divided by its epochs" if unit == "epoch" else ""
            text = f"What was measured is a process{divided}: its start-up is included."
            self.warn("startup-included", text)
        if unit == "step" and self.rows["gpus"].nunique() > 1:
            text = "The batch is unknown: a step may have other samples at another GPU count."
            self.warn("batch-unknown", text)
        return unit

    def keep_one_variant(self) -> None:
        shares = self.rows["dataset_fraction"]
        variants = group_numbers(self.rows, _JOB)
        if variants.nunique() < 2:
            if (share := shares.iloc[0]) < 1:
                text = f"All runs trained on {share:g} of the data set; epochs refer to that share."
                self.warn("share-of-data", text)
            return
        jobs = self.rows.groupby(variants)[list(_JOB)].first()
        ranked = jobs.assign(share=jobs["dataset_fraction"], runs=variants.value_counts())
        ranked = ranked.sort_values(["share", "runs"], ascending=False, kind="stable")
        differing = {
            name: jobs[name].map(differing_options(jobs[name]))
            if name in JSON_COLUMNS
            else jobs[name]
            for name in _JOB
            if jobs[name].nunique(dropna=False) > 1
        }
        labels = [
            group_label({name: values.loc[i] for name, values in differing.items()}) or "defaults"
            for i in ranked.index
        ]
        others = "; ".join(labels[1:4])
        others += f"; and {len(labels) - 4} more" if len(labels) > 4 else ""
        text = (
            f"The runs are of {len(labels)} different jobs, whose epochs cannot be compared. This "
            f"advice is for: {labels[0]}. Left out: {others}."
        )
        self.warn("variants-excluded", text)
        is_kept = variants == ranked.index[0]
        self.left_out[f"of other jobs: {others}"] = int((~is_kept).sum())
        self.rows = self.rows[is_kept]

    def keep_one_energy(self) -> str | None:
        labels = self.rows[self.rows[ENERGY].notna() & self.rows["energy_is"].notna()]
        if labels.empty:
            self.rows = self.rows.assign(**{ENERGY: float("nan")})
            return None
        names = [name for name in SETTINGS if name in labels]
        kinds = Counter(map(str, labels.drop_duplicates([*names, "energy_is"])["energy_is"]))
        chosen, *others = sorted(kinds, key=lambda text: (-kinds[text], -text.count("+"), text))
        if others:
            text = (
                f"Energies measure different things. Compared: {chosen}. Excluded from comparisons "
                f"of energy: {'; '.join(others)}."
            )
            self.warn("energies-differ", text)
        for marker, text in ENERGY_WARNINGS.items():
            if marker in chosen:
                self.warn(f"energy-{marker}", text)
        kept = self.rows[ENERGY].where(self.rows["energy_is"] == chosen)
        self.rows = self.rows.assign(**{ENERGY: kept})
        return chosen


ENERGY_WARNINGS = {
    "estimated": "Energies are estimated from CPU utilisation and an assumed power, not measured.",
    "simulated": "Energies are simulated by a device model, not measured.",
    "replayed": "Energies are replayed from a table, not measured in these runs.",
    "suspect": "The energies are marked suspect; see energy_reason in the store's epochs.",
    "mixed": "Energies come from different sources: windows were measured in different ways.",
}
