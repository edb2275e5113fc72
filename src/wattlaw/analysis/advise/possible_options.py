"""What may be chosen: the settings of a job that ran, and, predicted, those between and beyond.

A setting may be recommended where it has no more GPUs than allowed, and a global batch of which
quality is known to hold, or that is in use. A setting that ran is never replaced by a prediction.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.advise.option import COLUMNS, PER, PREDICTED, Option, Quantity
from wattlaw.analysis.advise.whole_job import Amounts, whole_jobs, with_whole_job
from wattlaw.analysis.laws.batch_effects import FALLS, BatchQuality, quality_by_batch
from wattlaw.analysis.laws.limit_effects import LIMITS, POWER_SETTINGS
from wattlaw.analysis.laws.series import varying_columns
from wattlaw.analysis.metrics.comparable_runs import (
    ENERGY,
    NOT_DATA_PARALLEL,
    TIME,
    ComparableRuns,
    comparable_runs,
)
from wattlaw.analysis.metrics.groups import group_numbers
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.result import plain
from wattlaw.analysis.metrics.setting_means import aggregate
from wattlaw.analysis.metrics.variation import shared_deviations, variation
from wattlaw.analysis.predict import grid, reach
from wattlaw.analysis.predict.intervals import quantiles
from wattlaw.analysis.predict.job import Job, job_of
from wattlaw.analysis.predict.peak_memory import LEAST_FIT
from wattlaw.analysis.predict.predictions import MeasuredRange
from wattlaw.analysis.predict.run_settings import setting_of_row
from wattlaw.common.errors import BadInput, NothingToRecommend
from wattlaw.study.command import command_of
from wattlaw.study.footprint import Footprint
from wattlaw.study.plan import unfit
from wattlaw.study.question import Question
from wattlaw.study.setting import LAYOUT_NAMES, Setting
from wattlaw.study.sources import source_of

#: Runs that differ in these columns inform different models.
_SEPARATE = ["hardware", "launcher", "threads_per_worker", "power_profile"]
#: A time is known well enough for an option if its 95 % interval is no wider than this factor.
WIDEST = 4.0
#: With more settings, those between measured batches and limits are left out.
_MOST = 400
#: Why an option may not be recommended.
TOO_MANY_GPUS, TOO_LARGE_BATCH = "more GPUs than allowed", "batch larger than allowed"
UNKNOWN_BATCH, LOWER_BATCH = "batch of unknown quality", "batch of lower quality"


@dataclass(frozen=True)
class Rule:
    """Which options may be recommended; batches up to ``largest_batch`` need no known quality."""

    quality: Sequence[BatchQuality]
    largest_batch: float
    max_gpus: float
    max_batch: float  # that is allowed at all
    decided: Setting | None = None  # of a decision: predicted if it did not run
    #: GPUs and batches that were declared, where runs had another batch: the script ignores them.
    ignored: frozenset[tuple[int, float]] = frozenset()
    far: bool = False  # whether ``max_gpus`` may be farther from the runs than ``reach.REFUSED``

    def judge(self, option: Option) -> Option:
        batch, group = option.global_batch, {"hardware": option.hardware}
        group["precision"] = option.setting.precision
        if batch is not None:
            own = [row for row in self.quality if group.items() <= row.group.items()]
            texts = {text: row.verdict for row in own if (text := row.warning(batch))}
            option = replace(
                option,
                quality_warnings=tuple(texts),
                falls=FALLS in texts.values(),
                quality_known=any(batch <= (row.known_to or 0) for row in own),
            )
        left_out = ""
        if option.gpus > self.max_gpus:
            left_out = TOO_MANY_GPUS
        elif (batch or 0) > self.max_batch:
            left_out = TOO_LARGE_BATCH
        elif batch is not None and batch > self.largest_batch:
            if option.falls:
                left_out = LOWER_BATCH
            elif not option.quality_known:
                left_out = UNKNOWN_BATCH
        return replace(option, left_out=left_out)


@dataclass(frozen=True)
class Options:
    """All settings of a job that ran, and the predicted ones, all of which may be recommended."""

    ran: tuple[Option, ...]
    predicted: tuple[Option, ...]
    named: Option | None  # the baseline that was asked for, or the setting in use
    rule: Rule
    #: Predicted ones whose time is not known within a factor of ``WIDEST``, the fastest first.
    unsure: tuple[Setting, ...] = ()

    @property
    def allowed(self) -> list[Option]:
        """Those that ran on no more GPUs and at no larger batch than allowed, of any quality."""
        never = (TOO_MANY_GPUS, TOO_LARGE_BATCH)
        return [item for item in self.ran if item.left_out not in never]

    @property
    def sound(self) -> list[Option]:
        return [item for item in self.ran if not item.left_out]

    @property
    def offered(self) -> list[Option]:
        """Those to choose from; all that ran where none may be recommended."""
        return [*self.sound, *self.predicted] or list(self.ran)

    def predict(self, *, outside: bool) -> "Options":
        """Return these options with predicted ones, also ``outside`` of the range of the runs.

        They are by the model of the runs, and as the rule allows. Settings whose workers share
        cores, that hardly fit into memory, or whose time is not known within a factor of
        ``WIDEST``, are left out. Means are medians; bounds are 95 % intervals of a run.
        """
        models = {id(item.model): item.model for item in self.ran if item.model is not None}
        amounts = {(item.setting.precision, item.global_batch): item.amount for item in self.ran}
        known, unsure = list[Option](), dict[Setting, float]()
        for model in models.values():
            own = [item for item in self.ran if item.model is model]
            first, is_fixed = own[0], len({item.amount for item in own}) == 1
            batches = [item.global_batch for item in own if item.global_batch is not None]
            measured, predicted = MeasuredRange.of(model.observations), []
            is_short = all(item.is_short for item in model.observations)
            for setting in _candidates([item.setting for item in own], model, self.rule):
                batch = None if setting.global_batch is None else int(setting.global_batch)
                beyond = measured.exceeded_by(setting)
                if batches and not min(batches) <= (batch or 0) <= max(batches):
                    beyond = (*beyond, "global_batch")
                amount = first.amount if is_fixed else amounts.get((setting.precision, batch))
                is_ignored = (setting.gpus, batch) in self.rule.ignored
                if amount is None or is_ignored or model.shares_cores(setting):
                    continue
                if beyond and not outside and setting != self.rule.decided:
                    continue
                option = self.rule.judge(replace(
                    first, setting=setting, global_batch=batch, source=PREDICTED, repeats=0,
                    runs=None, amount=amount, shared={}, slow_log=0.0, time_error=0.0,
                    is_short=is_short, interval_from=None,
                    extrapolates=beyond, epochs_trained=None, eval_time_s=None, metric=None,
                    per={}, quality_known=False, quality_warnings=(), falls=False,
                ))  # fmt: skip
                if not option.left_out:
                    predicted.append(option)
            fits = model.fits([item.setting for item in predicted])
            predicted = [
                replace(option, fits=chance) for option, chance in zip(predicted, fits, strict=True)
                if chance is None or chance >= LEAST_FIT
            ]  # fmt: skip
            if not predicted:
                continue
            time_s, energy_j = model.amounts([item.setting for item in predicted])
            times = quantiles(time_s, 0.95).T.tolist()
            energies = [None] * len(times)
            if energy_j is not None:
                energies = quantiles(energy_j, 0.95).T.tolist()
            for option, (low, middle, high), ends in zip(predicted, times, energies, strict=True):
                if high > WIDEST * low:
                    unsure[option.setting] = middle
                    continue
                time = Quantity(middle, low, high)
                energy = None if ends is None else Quantity(ends[1], ends[0], ends[2])
                energy_is = None if energy is None else model.energy_is
                timed = replace(option, time_s=time, energy_j=energy, energy_is=energy_is)
                known.append(with_whole_job(timed, own))
        fastest = sorted(unsure, key=lambda setting: unsure[setting])
        return replace(self, predicted=tuple(known), unsure=tuple(fastest))


def read_options(
    table: pd.DataFrame, job: ComparableRuns, amounts: Amounts, question: Question,
    baseline: Mapping[str, Any] | None, *, any_batch: bool, far: bool,
    decided: Setting | None = None, stored: pd.DataFrame | None = None,
) -> Options:  # fmt: skip
    """Return what may be chosen of a job; ``table`` has the runs that it was selected from, and
    ``stored`` also those without a result.

    Allowed are batches up to the largest that was asked for. Without it, the batch of the baseline,
    which is in use, and smaller ones, and those up to the largest of known quality; without both,
    the smallest batch of the runs. Epochs to a target are known where quality is.
    """
    counts_job = question.is_of_jobs(command_of(job.rows["options"].iloc[0]))
    ran = options_of_runs(job, amounts, question.footprint, counts_job=counts_job)
    if any(item.has_overhead for item in ran):  # whole jobs are compared with whole jobs
        ran = [item if item.has_overhead else with_whole_job(item, ran) for item in ran]
    if not ran:
        workload = job.rows["workload"].iloc[0]
        raise NothingToRecommend(f"no setting of {workload!r} has a time and the epochs to train")
    # Runs that emulate the batch of more GPUs are no options, but they inform the model.
    informing, models = job, {}
    if table["emulated_gpus"].notna().any():
        workload = str(job.rows["workload"].iloc[0])
        with_emulated = comparable_runs(table.assign(emulated_gpus=None), workload)
        if (with_emulated.unit, with_emulated.energy_is) == (job.unit, job.energy_is):
            informing = with_emulated
    unknown = job.rows.loc[job.rows["layout"].isna(), "parallelism"].dropna()
    if set(unknown).isdisjoint(NOT_DATA_PARALLEL):
        with suppress(NothingToRecommend):  # layouts need the sizes of the network
            models = {
                tuple(map(plain, key)): job_of(replace(informing, rows=rows), stored=stored)
                for key, rows in informing.rows.groupby(_SEPARATE, dropna=False)
                if rows["run_id"].isin(job.rows["run_id"]).any()
            }
    if models and not far:
        reach.check_gpus("max_gpus", question.max_gpus or 1, [item.setting for item in ran])
    ran = [
        replace(item, model=models.get(tuple(item.columns[name] for name in _SEPARATE)))
        for item in ran
    ]
    most = question.max_global_batch or np.inf
    if decided is not None:
        own = ran[0].setting
        decided = replace(
            decided, power_profile=own.power_profile, dataset_fraction=own.dataset_fraction
        )
    gpus = question.max_gpus or np.inf
    other = job.rows.dropna(subset="global_batch_declared")
    ignored = frozenset(zip(other["gpus"], other["global_batch_declared"], strict=True))
    rule = Rule(quality_by_batch(job.rows), np.inf, gpus, most, decided, ignored, far)
    named = None if baseline is None else _index_of(ran, baseline)
    if baseline is None and question.in_use:
        named = next(iter(_matching(ran, question.in_use)), None)
    in_use = None if named is None else ran[named].global_batch
    if not any_batch and not (question.max_global_batch or question.is_by_batch):
        largest = min((item.global_batch for item in ran if item.global_batch), default=0)
        if in_use is not None:
            largest = in_use
        elif any(rule.judge(item).quality_known for item in ran):
            largest = 0
        rule = replace(rule, largest_batch=largest)
    judged = tuple(rule.judge(item) for item in ran)
    options = Options(judged, (), None if named is None else judged[named], rule)
    options = options.predict(outside=question.max_gpus is not None)
    if baseline is None and named is None and question.in_use:
        at = _matching(options.predicted, question.in_use)
        options = replace(options, named=options.predicted[at[0]] if at else None)
    return options


def options_of_runs(
    job: ComparableRuns,
    amounts: Amounts,
    footprint: Footprint | None = None,
    *,
    counts_job: bool = True,
) -> list[Option]:
    group, quantities = group_numbers(job.rows, SETTINGS), [TIME, ENERGY]
    by_group = job.rows.groupby(group)
    rows = aggregate(job.rows).assign(
        eval_time_s=by_group["eval_time_s"].mean(),
        epochs_trained=by_group["epochs_trained"].max(),
        slow_log=by_group["slow_log"].mean(),
        time_error=by_group["time_error"].agg(lambda errors: float(np.sqrt((errors**2).mean()))),
        is_short=by_group["is_short"].all(),
    )
    runs = [own.to_numpy(float) for _, own in by_group[quantities]]
    whole = [
        of | {"beside_j": counts_job * of.get("beside_j", 0.0), "counts_job": counts_job}
        for of in whole_jobs(job, group, amounts)
    ]
    varied = [variation(job.rows[name], group, job.rows) for name in quantities]
    shared = [shared_deviations(own, varied) for _, own in job.rows.groupby(group)]
    shown, options = tuple(varying_columns(job.rows)), []
    for number, row in enumerate(rows.to_dict("records")):
        values = {str(name): plain(value) for name, value in row.items()}
        for name in ("threads_per_worker", "global_batch"):
            values[name] = None if values[name] is None else int(values[name])
        amount, repeats = amounts.get((values["precision"], values["global_batch"])), int(row["n"])
        setting = replace(
            setting_of_row(row, job.unit),
            power_profile=values["power_profile"],
            dataset_fraction=values["dataset_fraction"] or 1.0,
        )
        time_s, energy_j = (
            Quantity.of(*(row[name + end] for end in ("", "_low", "_high"))) for name in quantities
        )
        if amount is None or time_s is None:
            continue
        options.append(
            Option(
                setting=setting, hardware=values["hardware"], launcher=values["launcher"],
                threads_per_worker=values["threads_per_worker"], run_length=values["run_length"],
                global_batch=values["global_batch"], unit=job.unit, time_s=time_s,
                energy_j=energy_j, amount=amount, source=source_of(values["launcher"]),
                repeats=repeats, runs=runs[number], shared=shared[number],
                slow_log=values["slow_log"], time_error=values["time_error"] or 0.0,
                is_short=bool(values["is_short"]), energy_is=job.energy_is if energy_j else None,
                interval_from=values["interval_from"],
                footprint=footprint, epochs_trained=values["epochs_trained"],
                eval_time_s=values["eval_time_s"], **whole[number], metric=values["metric"],
                per={name: values[name] for name in PER}, worker=job.worker, shown=shown,
            )
        )  # fmt: skip
    return options


def _index_of(options: Sequence[Option], baseline: Mapping[str, Any]) -> int:
    """Return the number of the option that has the columns of a baseline."""
    names = (*COLUMNS, *LAYOUT_NAMES)
    if unknown := set(baseline) - {*names}:
        raise BadInput(f"baseline: unknown setting {min(unknown)!r}; allowed: {', '.join(names)}")
    text = ",".join(f"{name}={value}" for name, value in baseline.items())
    rows = [item.identity for item in options]
    matching = _matching(options, baseline)
    if not matching:
        ran = {name: {str(row[name]) for row in rows} for name in baseline}
        sizes = {name: sorted(of, key=lambda text: (len(text), text)) for name, of in ran.items()}
        listed = "; ".join(f"{name}={' | '.join(of[:12])}" for name, of in sizes.items())
        raise BadInput(f"baseline: no run has {text}; allowed: a setting of the runs ({listed})")
    if len(matching) > 1:
        values = {name: dict.fromkeys(str(rows[at][name]) for at in matching) for name in names}
        differing = [f"{name}={' | '.join(of)}" for name, of in values.items() if len(of) > 1]
        raise BadInput(
            f"baseline: {len(matching)} settings have {text}; allowed: one of them, which differ "
            f"in {'; '.join(differing) or 'the energy or the job'}"
        )
    return matching[0]


def _matching(options: Sequence[Option], baseline: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the options with the columns of a baseline.

    A limit that is not named means no limit, if settings with the same names differ in it. Without
    a layout, a data-parallel one is preferred.
    """
    rows = {at: item.identity for at, item in enumerate(options)}
    matching = [at for at, row in rows.items() if baseline.items() <= row.items()]
    limits = [name for name in POWER_SETTINGS if name not in baseline]
    free = [at for at in matching if all(rows[at][name] is None for name in limits)] or matching
    shared = [at for at in free if options[at].setting.layout]
    has_layout = not baseline.keys().isdisjoint(LAYOUT_NAMES)
    return free if has_layout or len(shared) == len(free) else sorted({*free} - {*shared})


def _candidates(measured: Sequence[Setting], model: Job, rule: Rule) -> Iterator[Setting]:
    """Yield settings at measured GPU counts and their doublings that did not run.

    They are all combinations of measured batches, layouts and limits, and batches and limits
    half-way between neighbours.
    """
    node_gpus, largest = model.node_gpus, max(item.gpus for item in measured)
    top = math.inf if rule.far and rule.max_gpus < math.inf else reach.REFUSED
    counts = model.default_counts or grid.doublings(
        {item.gpus for item in measured}, min(top, max(rule.max_gpus, largest) / largest)
    )
    limits = dict.fromkeys(tuple(getattr(item, name) for name in LIMITS) for item in measured)
    batches = {count: grid.local_batches(measured, count) for count in counts}
    between = list(dict.fromkeys([*limits, *grid.halfway_limits(list(limits))]))
    size = sum(map(len, batches.values()))
    variants = grid.variants(measured, _MOST // (size * len(limits)))
    chosen = between if size * len(variants) * len(between) <= _MOST else list(limits)
    # Where GPUs were spread over more nodes than they need, these numbers are tried too.
    spread = sorted({
        item.nodes for item in measured
        if node_gpus and item.nodes and item.nodes > -(-item.gpus // node_gpus)
    })  # fmt: skip

    def key(setting: Setting) -> Setting:  # runs name the number of nodes at most
        return replace(setting, nodes=setting.nodes if node_gpus else None, gpus_per_node=None)

    known = {key(item) for item in measured}
    same = {name: getattr(measured[0], name) for name in ("power_profile", "dataset_fraction")}
    if rule.decided is not None and key(rule.decided) not in known:
        known.add(key(rule.decided))
        yield rule.decided
    for count, limit, variant in product(counts, chosen, variants):
        nodes = [number for number in spread if number <= count <= number * (node_gpus or 0)]
        values = {**same, **variant, **dict(zip(LIMITS, limit, strict=True))}
        micro = values.pop("micro_batch", None)
        for batch, on_nodes in product(batches[count], [None, *nodes]):
            try:
                setting = grid.placed(count, on_nodes, node_gpus, local_batch=batch, **values)
                setting = setting.in_micro_batches(micro) if micro else setting
            except BadInput:  # sizes of the layout that do not divide
                continue
            unfits = model.network is not None and unfit(setting, model.network)
            if key(setting) not in known and not unfits:
                known.add(key(setting))
                yield setting
