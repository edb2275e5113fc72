"""All results that a report shows, computed from the tables of one or more stores."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.advice import Advice, advise
from wattlaw.analysis.decide.decision import STUDY_FILE, Decision
from wattlaw.analysis.laws.batch_effects import BatchQuality, quality_by_batch
from wattlaw.analysis.laws.energy_laws import energy_laws
from wattlaw.analysis.laws.fitting import Fits
from wattlaw.analysis.laws.limit_effects import LIMITS, limit_effects, without_limits
from wattlaw.analysis.laws.series import (
    fit_table,
    law_refusals,
    scaling_series,
    speedups,
    varying_columns,
)
from wattlaw.analysis.metrics.comparable_runs import batch_cautions, scope_cautions, uncooperative
from wattlaw.analysis.metrics.groups import groups
from wattlaw.analysis.metrics.metrics import HOUR_S, run_metrics, with_sampled_utilisation
from wattlaw.analysis.metrics.result import Caution, plain
from wattlaw.analysis.metrics.setting_means import aggregate, join_energy_kinds
from wattlaw.analysis.metrics.variation import slow_nodes, with_slow_nodes
from wattlaw.analysis.predict.layout_cells import LayoutCells, layout_cells
from wattlaw.analysis.predict.run_settings import setting_of_row
from wattlaw.analysis.predict.workload_predictions import Overview, overviews
from wattlaw.common.errors import Refused
from wattlaw.common.formatting import plural
from wattlaw.common.scopes import OUTERMOST
from wattlaw.common.text import join_names
from wattlaw.study.footprint import Footprint
from wattlaw.study.labels import group_label, setting_label
from wattlaw.study.not_as_declared import UNCOOPERATIVE, uncooperative_text
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting
from wattlaw.study.sources import origin_of, origins_label, source_of, sources_label

#: A number of a note, such as of steps with a pause.
_NUMBER = re.compile(r"(?<!\w)[+-]?\d[\d.,]*")
_COSTS = ("co2_kg", "cost", "counted")
_NOT_TIMED = "no training window of known duration after warm-up that was not interrupted"


@dataclass(frozen=True, eq=False)  # a key of caches, by identity
class Findings:
    stored: pd.DataFrame  # all runs, as in the stores
    statuses: dict[str, int]
    not_done: pd.DataFrame  # of runs: failed, interrupted; with reasons
    not_timed: pd.DataFrame  # run_id, workload, gpus, reason: done runs that are in no result
    facts: dict[str, str]  # workloads, hardware, software and dates of the runs, as text by name
    notes: tuple[str, ...]  # the distinct notes of runs, each with the number of runs
    runs: pd.DataFrame  # metrics.metrics.run_metrics
    epochs: pd.DataFrame  # as in the stores
    series: pd.DataFrame  # laws.series.scaling_series
    energy: str | None  # "cpu, estimated": scope and source of all energies; None without any
    varying_settings: tuple[str, ...]  # settings other than GPUs and batch in which the runs differ
    statistics: pd.DataFrame | None  # of the telemetry, store.statistics
    joint: pd.DataFrame | None  # run_id, sm_bin, mem_bin, samples
    limit_effects: pd.DataFrame  # laws.limit_effects, and ``limit_kind``
    energy_laws: pd.DataFrame  # laws.energy_laws.energy_laws, of limit_effects.without_limits
    quality: tuple[BatchQuality, ...]  # laws.batch_effects.quality_by_batch
    totals: pd.DataFrame  # time and energy of all runs: _totals
    footprint: Footprint | None
    cautions: tuple[Caution, ...]  # about runs that do not compare
    decisions: tuple[Decision, ...] = ()  # of studies with ``decide``, at most one of each store
    #: By workload, with the decision that answers it; of others, nothing is asked.
    questions: Mapping[str, tuple[Question, Decision | None]] = field(default_factory=dict)
    store: str = "STORE"  # the name of the runs' folder in commands
    study_file: str = STUDY_FILE  # that of its study
    asked_workloads: tuple[str, ...] | None = None  # that have advice; None: all
    reference: int | None = None  # of ``speedups``

    @cached_property
    def settings(self) -> pd.DataFrame:
        return aggregate(self.runs)

    @cached_property
    def fits(self) -> Fits:
        return fit_table(self.runs, series=self.series)

    @cached_property
    def speedups(self) -> pd.DataFrame:
        return speedups(self.series, self.reference)

    @property
    def has_quality(self) -> bool:
        return bool(self.runs["metric"].notna().any())

    @property
    def origins_label(self) -> str:
        """Return ``simulated`` or ``replayed`` if no run is measured, else nothing."""
        return origins_label(self.runs["launcher"])

    @property
    def sources_label(self) -> str:
        """Return the sources of the runs, such as ``imported``, if none was measured here."""
        return sources_label(self.runs["launcher"])

    @cached_property
    def unlimited_series(self) -> pd.DataFrame:
        """The series of a constant data set, without cap and clock (or with the highest)."""
        fixed = self.series[self.series["fraction_per_gpu"].isna()]
        return without_limits(fixed, ["family"])

    @cached_property
    def predictions(self) -> tuple[Overview, ...]:
        return overviews(self.runs, self.stored, self._recommended)

    @cached_property
    def layouts(self) -> tuple[LayoutCells, ...]:
        """The cells of jobs whose runs have several layouts, at the recommended setting."""
        failed = self.stored[self.stored["status"] == OUT_OF_MEMORY]
        shown = []
        for job in (item.job for item in self.predictions):
            own = failed[failed["workload"] == job.workload]
            own = own[(own["hardware"] == job.hardware) | own["hardware"].isna()]
            chosen = self._recommended.get((job.workload, job.hardware))
            too_large = [setting_of_row(row, job.unit) for row in own.to_dict("records")]
            ran = self.runs[self.runs["workload"] == job.workload]
            ran = ran[(ran["hardware"] == job.hardware) | ran["hardware"].isna()]
            source = " and ".join(sorted(set(ran["launcher"].map(source_of))))
            shown.append(layout_cells(job, chosen, too_large, source))
        return tuple(filter(None, shown))

    @property
    def _recommended(self) -> dict[tuple[str, str | None], Setting]:
        """The recommended settings as jobs have them, by workload and hardware."""
        best = {(item.workload, item.recommended.hardware): item.recommended.setting
                for item in self.advice if item.recommended}  # fmt: skip
        return {
            key: replace(item, power_profile=None, dataset_fraction=1.0)
            for key, item in best.items()
        }

    @property
    def advice(self) -> tuple[Advice, ...]:
        return self._advised[0]

    @property
    def advice_refusals(self) -> tuple[tuple[str, str], ...]:
        return self._advised[1]

    @cached_property
    def _advised(self) -> tuple[tuple[Advice, ...], tuple[tuple[str, str], ...]]:
        return advise_each(
            self.runs,
            self.epochs,
            self.stored,
            self.questions,
            self.footprint,
            self.asked_workloads,
            self.store,
            self.study_file,
        )


def advise_each(
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    stored: pd.DataFrame,
    questions: Mapping[str, tuple[Question, Decision | None]],
    footprint: Footprint | None = None,
    workloads: Sequence[str] | None = None,
    store: str = "STORE",
    study_file: str = STUDY_FILE,
) -> tuple[tuple[Advice, ...], tuple[tuple[str, str], ...]]:
    """Return the advice on each workload, and those that have none with the reason.

    The tables and ``questions`` are those of ``Findings``. ``workloads`` have advice, by default
    all; others are named in one reason.
    """
    advice, refused = [], []
    nothing = Question(footprint=footprint), None
    done = sorted(map(str, runs["workload"].dropna().unique()))
    asked = done if workloads is None else workloads
    for workload in asked:
        question, decision = questions.get(workload, nothing)
        try:
            advice.append(
                advise(
                    runs,
                    epochs,
                    workload,
                    question,
                    stored=stored,
                    decision=decision,
                    store=store,
                    study_file=study_file,
                )
            )
        except Refused as refusal:
            refused.append((str(workload), str(refusal)))
    if others := [name for name in done if name not in asked]:
        text = f"it is of no study in the store; wattlaw advise {store} --workload NAME answers"
        text += " for it"
        refused.append((join_names(others), text))
    return tuple(advice), tuple(refused)


def analyse(
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    *,
    statistics: pd.DataFrame | None = None,
    joint: pd.DataFrame | None = None,
    footprint: Footprint | None = None,
    reference: int | None = None,
    decisions: Sequence[Decision] = (),
    questions: Mapping[str, tuple[Question, Decision | None]] | None = None,
    energy_scope: str = OUTERMOST,
    asked_workloads: tuple[str, ...] | None = None,
    store: str = "STORE",
    study_file: str = STUDY_FILE,
) -> Findings:
    """Return all findings of the tables.

    ``runs`` and ``epochs`` are of ``store.schema``; ``statistics`` and ``joint`` of
    ``store.statistics``, where there is telemetry of GPUs. ``reference`` is that of
    ``speedup.speedups``. ``decisions`` has the last one of each store that has one, ``questions``
    what each workload's advice answers, with its decision; ``energy_scope`` is that of
    ``metrics.run_metrics``. ``asked_workloads`` is that of ``Findings``.
    """
    table = run_metrics(runs, epochs, energy_scope)
    table = with_slow_nodes(with_sampled_utilisation(table, statistics))
    columns = ["run_id", "workload", "gpus", "global_batch", "repeat", "status", "reason"]
    not_done = runs[runs["status"] != "done"].sort_values(["status", "reason", "run_id"])
    untimed = runs[(runs["status"] == "done") & ~runs["run_id"].isin(table["run_id"])]
    return Findings(
        stored=runs,
        statuses={str(key): int(count) for key, count in runs["status"].value_counts().items()},
        not_done=not_done[columns].reset_index(drop=True),
        not_timed=untimed[["run_id", "workload", "gpus"]].assign(reason=_NOT_TIMED),
        facts=facts(runs),
        notes=notes(runs),
        runs=table,
        epochs=epochs,
        series=scaling_series(table),
        energy=join_energy_kinds(table.loc[table["energy_j"].notna(), "energy_is"]),
        varying_settings=tuple(varying_columns(table)),
        statistics=statistics,
        joint=joint,
        limit_effects=pd.concat(
            [limit_effects(table, kind).assign(limit_kind=kind) for kind in LIMITS],
            ignore_index=True,
        ),
        energy_laws=energy_laws(without_limits(table, ["workload", "hardware"])),
        quality=quality_by_batch(table),
        totals=_totals(table, footprint),
        footprint=footprint,
        cautions=tuple(_cautions(table)),
        decisions=tuple(decisions),
        questions=questions or {},
        store=store,
        study_file=study_file,
        asked_workloads=asked_workloads,
        reference=reference,
    )


def _cautions(table: pd.DataFrame) -> Iterator[Caution]:
    alone = table[uncooperative(table)]
    if len(alone):
        yield Caution(UNCOOPERATIVE, uncooperative_text(len(alone), set(alone["workload"])))
    yield from batch_cautions(table)
    yield from scope_cautions(table)
    for _, rows in table.groupby("workload"):
        yield from (item.caution for item in slow_nodes(rows)[0])
    for reason, rows in table.groupby(law_refusals(table)):
        if not rows["run_id"].isin(alone["run_id"]).any():
            text = f"{plural(len(rows), 'run')} in no law or speedup: {reason}."
            yield Caution("in-no-law", text)
    for workload, units in table["unit"].groupby(table["workload"]):
        if units.nunique() > 1:
            counts = "; ".join(f"{name}: {count}" for name, count in units.value_counts().items())
            text = f"Runs of {workload} have different units and are not compared ({counts})."
            yield Caution("units-differ", text)
    if count := int((table["basis"] == "run").sum()):
        text = f"Start-up is included in {plural(count, 'run')}: whole processes were measured."
        yield Caution("startup-included", text)


def _totals(table: pd.DataFrame, footprint: Footprint | None) -> pd.DataFrame:
    """Return the totals of the done runs, without warm-up, interrupted windows and evaluation.

    Runs of different sources are never added up, and a sum with a missing energy is missing.
    Columns ``workload, hardware, source, energy_is, runs, gpu_hours, energy_j`` and, with a
    footprint, ``co2_kg, cost, counted``.
    """
    by = ["workload", "hardware", "source", "energy_is"]
    table = table.assign(
        source=table["launcher"].map(source_of),
        gpu_hours=table["gpus"] * table["train_time_s"] / HOUR_S,
    )
    rows = []
    for group, of_group in groups(table, by):
        energy_j = plain(of_group["train_energy_j"].sum(skipna=False))
        hours = float(of_group["gpu_hours"].sum())
        row = {**group, "runs": len(of_group), "gpu_hours": hours, "energy_j": energy_j}
        if footprint is not None:
            cost = footprint.of(energy_j, hours, group["energy_is"])
            row |= {name: getattr(cost, name) for name in _COSTS}
        rows.append(row)
    columns = [*by, "runs", "gpu_hours", "energy_j", *(_COSTS if footprint else ())]
    return pd.DataFrame(rows, columns=columns)


def facts(runs: pd.DataFrame) -> dict[str, str]:
    done = runs[runs["status"] == "done"]
    dated = done[done["launcher"].map(origin_of) != "replayed"]  # those are on a virtual clock
    started, ended = dated["started_at"].min(), dated["finished_at"].max()
    ran = ""
    if not (pd.isna(started) or pd.isna(ended)):
        ran = f"{started:%Y-%m-%d %H:%M} to {ended:%Y-%m-%d %H:%M} UTC"
    facts_by_name = {
        "Studies": _listed(runs["study"]),
        "Workloads": _listed(done["workload"]),
        "Hardware": _listed(done["hardware"]),
        "GPUs or workers": _listed(done["gpus"]),
        "Power limits (W)": _listed(done["power_limit_w"]),
        "Clock limits (MHz)": _listed(done["clock_limit_mhz"]),
        "Power profiles": _listed(done["power_profile"]),
        "Precision": _listed(done["precision"]),
        "Options": _options(done),
        "Launcher": _listed(done["launcher"]),
        "Partitions": _listed(done["partition"]),
        "Ran": ran,
        "Software": _software(done["software"]),
        "Git commit": _listed(done["git_commit"]),
    }
    return {name: shown for name, shown in facts_by_name.items() if shown}


def notes(runs: pd.DataFrame) -> tuple[str, ...]:
    """Return the notes of runs: how many have each, and of which setting if it is one of several.

    Those that differ in numbers are one.
    """
    keys = ["gpus", "global_batch", *LIMITS]
    rows = runs.explode("notes").dropna(subset="notes")
    alike = rows["notes"].str.replace(_NUMBER, "0", regex=True)
    is_one = len(runs[keys].drop_duplicates()) == 1
    shown = []
    for text, count in alike.value_counts().items():
        these = rows[alike == text]
        settings: Any = these[keys].drop_duplicates().to_dict("records")
        of = "" if is_one or len(settings) > 1 else f" of {group_label(settings[0])}"
        others = "; the numbers are those of one of them" if these["notes"].nunique() > 1 else ""
        first = str(these["notes"].iloc[0])
        shown.append(f"{first[:1].upper()}{first[1:]} ({plural(count, 'run')}{of}{others})")
    return tuple(shown)


def _software(texts: pd.Series) -> str:
    versions: dict[str, set[str]] = {}
    for text in texts.dropna().unique():
        for package, version in json.loads(text).items():
            versions.setdefault(package, set()).add(version)
    return ", ".join(f"{name} {', '.join(sorted(numbers))}" for name, numbers in versions.items())


def _options(done: pd.DataFrame) -> str:
    texts = []
    for workload, options in done["options"].groupby(done["workload"]):
        labels = (setting_label("options", text) for text in sorted(options.dropna().unique()))
        if shown := "; ".join(filter(None, labels)):
            texts.append(f"{workload}: {shown}")
    return " | ".join(texts)


def _listed(values: pd.Series) -> str:
    distinct = sorted(values.dropna().unique())
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in distinct)
