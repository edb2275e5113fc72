"""The scaling of a workload to a number of nodes, from runs and predictions, and a campaign."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.option import PREDICTED, Option, Quantity
from wattlaw.analysis.advise.possible_options import options_of_runs
from wattlaw.analysis.advise.whole_job import needed_epochs
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.batch_effects import quality_by_batch
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.comparable_runs import WHY_NO_EPOCH, comparable_runs
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.analysis.predict import grid
from wattlaw.analysis.predict.intervals import LEVEL, quantiles
from wattlaw.analysis.predict.job import Job, jobs_of
from wattlaw.analysis.predict.observation import Floats
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.formatting import number, plural
from wattlaw.study.labels import layout_label
from wattlaw.study.question import Question
from wattlaw.study.setting import LAYOUT_NAMES, Setting, layout_of

#: How a training's length can be given.
BUDGETS = ("epochs", "steps", "total_samples", "tokens")
_KINDS = {"global_batch": "strong", "local_batch": "weak"}


@dataclass(frozen=True)
class Campaign:
    """What is planned: trainings on so many nodes, each of one of ``BUDGETS`` (none: as the runs).

    Without ``nodes``, it is the recommended setting. Steps are of the global batch that is planned.
    ``rule`` is the least speedup per doubling of GPUs that a centre asks for.
    """

    nodes: int | None = None
    runs: int = 1
    epochs: int | None = None
    steps: float | None = None
    total_samples: float | None = None
    tokens: float | None = None
    sequence_length: int | None = None  # tokens of a sample
    rule: float | None = None

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in numbers.items():
            if not (value >= 1 and math.isfinite(value)):
                raise BadInput(f"{name}: given {value:g}; allowed: a number from 1")
        if len(given := [name for name in BUDGETS if name in numbers]) > 1:
            raise BadInput(f"given {' and '.join(given)}; allowed: one of them")
        if (self.tokens is None) != (self.sequence_length is None):
            raise BadInput("tokens and sequence_length, the tokens of a sample, go together")

    @property
    def samples(self) -> float | None:
        """Return the samples of a training, where they are known without its global batch."""
        return self.total_samples or (self.tokens and self.tokens / (self.sequence_length or 1))


@dataclass(frozen=True)
class Point:
    """A GPU count with time and energy of a training, from runs or predicted.

    ``efficiency`` is parallel efficiency relative to the base of the scaling, ``doubling`` the
    speedup per doubling of GPUs, from the largest count of at most half of them.
    """

    setting: Setting
    source: str
    runs: int
    time_s: Quantity
    energy_j: Quantity | None
    efficiency: Quantity | None = None
    doubling: Quantity | None = None

    @property
    def gpu_hours(self) -> Quantity:
        return self.time_s.times(self.setting.gpus / HOUR_S)


@dataclass(frozen=True)
class Scaling:
    """Times of a training by GPU count, at a constant global batch (strong) or local batch (weak).

    The first point is the base of speedup and efficiency: the smallest count that ran, unless a
    smaller one is planned. ``curve`` has the prediction at the counts of all ``points``.
    """

    kind: str  # strong | weak
    points: tuple[Point, ...]
    curve: tuple[Point, ...]

    @property
    def base(self) -> Point:
        return self.points[0]

    @property
    def misfit(self) -> float:
        """Return the largest error of the model's time at a count that ran, as a share."""
        pairs = zip(self.points, self.curve, strict=True)
        errors = (curve.time_s.mean / point.time_s.mean - 1 for point, curve in pairs if point.runs)
        return max(map(abs, errors))

    def keeps(self, rule: float) -> Point:
        """Return the largest count up to which each doubling has at least this speedup."""
        last = self.base
        for point in self.points[1:]:
            if point.doubling is not None and point.doubling.mean < rule:
                break
            last = point if point.doubling is not None else last
        return last


@dataclass(frozen=True)
class Proposal:
    """The scaling of a workload to a number of nodes, and what is planned there.

    The first of ``scalings`` contains what is planned.
    """

    findings: Findings
    job: Job
    campaign: Campaign
    nodes: int
    planned: Point
    scalings: tuple[Scaling, ...]
    training: str  # its length, such as ``90 epochs``
    quality: str  # what is known of it at the global batch that is planned

    @property
    def points(self) -> tuple[Point, ...]:
        return self.scalings[0].points


def propose(findings: Findings, workload: str, campaign: Campaign) -> Proposal:
    """Return the scaling of a workload up to the nodes of a campaign.

    What is planned is the recommended setting, so the question of ``findings`` has the campaign's
    length. The other kind of scaling is added where at least two counts ran. ``Refused`` if no run
    is done or can be predicted, no run has that batch, or the time of a training is not known;
    ``BadInput`` if the runs do not name their nodes, or use several and nothing is recommended.
    """
    jobs = sorted(jobs_of(findings.runs, workload), key=lambda item: -len(item.observations))
    advised = (item.recommended for item in findings.advice if item.workload == workload)
    best = next(filter(None, advised), None)
    job = next((item for item in jobs if best and item.hardware == best.hardware), jobs[0])
    layout_names = LAYOUT_NAMES if len({*map(layout_of, job.settings)}) > 1 else ()
    nodes, planned, series = _plan(job, campaign.nodes, best, layout_names)
    comparable = comparable_runs(findings.runs, workload)
    amounts, _ = needed_epochs(comparable, findings.epochs, Question(epochs=campaign.epochs))
    amount, training = _amount(job, campaign, next(iter(amounts.values())), planned.global_batch)
    is_own = comparable.rows["hardware"].astype(object).fillna("") == (job.hardware or "")
    rows = comparable.rows[is_own]
    options = options_of_runs(replace(comparable, rows=rows), dict.fromkeys(amounts, amount))
    scalings: list[Scaling] = []
    for kind, settings in series.items():
        ran = dict(_of_runs(options, settings, (*_MATCHED, *layout_names)))
        if len(ran) >= min(2, 1 + len(scalings)):
            curve = sorted(_predicted(job, settings, amount), key=lambda point: point.setting.gpus)
            points = [ran.get(point.setting, point) for point in curve]
            start = next(i for i, at in enumerate(points) if at.runs or at.setting == planned)
            parts = (points[start:], curve[start:])
            scalings.append(Scaling(kind, *(_relative(part, part[0]) for part in parts)))
        elif not scalings:
            raise Refused(f"{workload}: no run has the batch and the limits of most runs")
    point = next(item for item in scalings[0].points if item.setting == planned)
    quality = _quality(rows, planned)
    return Proposal(findings, job, campaign, nodes, point, tuple(scalings), training, quality)


def _plan(
    job: Job, asked: int | None, best: Option | None, layout_names: Sequence[str]
) -> tuple[int, Setting, dict[str, list[Setting]]]:
    """Return the nodes and the setting of a training, and the settings of each kind of scaling.

    It is the recommended setting ``best``; on other nodes, its layout, limits and batch, as far as
    runs on no more have them; without a recommendation those of most runs.
    """
    if job.node_gpus is None:
        raise BadInput(
            f"nodes: the runs of {job.workload} do not name their nodes; import them with a column "
            "for nodes"
        )
    most = max(item.nodes or 1 for item in job.settings)
    if asked is None and best is None and most > 1:
        raise BadInput(
            f"nodes: not given, and runs of {job.workload} used up to {most}; name those of a "
            "training: --nodes N"
        )
    nodes = asked or (most if best is None else best.setting.nodes or 1)
    chosen = None if best is None else best.setting
    layout = {name: [getattr(chosen or job.fastest, name)] for name in layout_names}
    advised = best if best is not None and nodes == (best.setting.nodes or 1) else None
    gpus = nodes * job.node_gpus if advised is None else advised.gpus
    series = _settings(job, nodes, gpus, chosen, layout)
    if advised is not None:  # on the GPUs of each node that it has
        on = {name: getattr(advised.setting, name) for name in ("nodes", "gpus_per_node")}
        series = {kind: [replace(item, **on) if item.gpus == gpus else item for item in settings]
                  for kind, settings in series.items()}  # fmt: skip
    planned = max((item for item in next(iter(series.values())) if item.gpus <= gpus),
                  key=attrgetter("gpus"))  # fmt: skip
    if layout and planned.gpus < gpus:
        text = f"{layout_label(planned)} cannot be used on {plural(nodes, 'node')}"
        raise Refused(f"{job.workload}: {text}; give another number of nodes")
    if advised is not None and not advised.is_at(planned):
        text = f"no run has the batch and the limits of what is recommended, {advised.label}"
        raise Refused(f"{job.workload}: {text}; measure it, or give another number of nodes")
    return nodes, planned, series


def _amount(
    job: Job, campaign: Campaign, of_runs: Quantity, batch: float | None
) -> tuple[Quantity, str]:
    """Return the units of a training, and its length as text."""
    name = next((name for name in BUDGETS if getattr(campaign, name) is not None), "epochs")
    if name == "epochs":
        if job.unit in ("sample", "step"):
            why = WHY_NO_EPOCH[job.unit]
            text = f"the time of a training is unknown: {why}; give steps, total_samples or tokens"
            raise Refused(f"{job.workload}: {text}")
        count = of_runs.mean
        return of_runs, f"{count:g} {job.unit}{'s' * (count != 1)}"
    count = getattr(campaign, name)
    samples = campaign.samples or count * (batch or math.nan)
    units = samples / (job.samples_per_unit or math.nan)
    if name == "steps" and job.unit == "step":
        units = count
    if math.isnan(units):
        raise Refused(f"{name}: how many samples a {job.unit} of {job.workload} has is unknown")
    return Quantity(units, units, units), f"{number(count)} {name.removeprefix('total_')}"


def _quality(rows: pd.DataFrame, setting: Setting) -> str:
    batch = setting.global_batch
    if batch is None or rows["metric"].isna().all():
        return "not known: " + ("no run has a metric" if batch else "the batch is not known")
    found = [
        item for item in quality_by_batch(rows) if item.group["precision"] == setting.precision
    ]
    if texts := [text for item in found if (text := item.warning(batch))]:
        return texts[0]
    known = [item.known_to for item in found if item.known_to and batch <= item.known_to]
    return f"shown to hold up to global batch {max(known)}" if known else "not known at this batch"


def _settings(
    job: Job, nodes: int, gpus: int, chosen: Setting | None, layout: Mapping[str, list[Any]]
) -> dict[str, list[Setting]]:
    """Return ``gpus``, the counts that ran on up to ``nodes`` and doublings of nodes, by scaling.

    Limits and batch are those of ``chosen``, as far as runs on these counts have them, else those
    of most. The kind of scaling that most runs have comes first, unless it cannot have that batch
    or ``gpus``.
    """
    node_gpus = job.node_gpus or 1
    counts = {item.gpus for item in job.settings if item.gpus <= nodes * node_gpus} | {gpus}
    counts |= {node_gpus * 2**k for k in range(nodes.bit_length()) if 2**k < nodes}
    measured = job.settings
    if chosen is not None:
        alike = attrgetter("precision", "gradient_accumulation", *LIMITS)
        measured = [item for item in measured if alike(item) == alike(chosen)] or measured
    usual = grid.usual_values(measured)
    series: dict[str, list[Setting]] = {}
    ran: dict[str, dict[float | None, set[int]]] = {name: {} for name in _KINDS}
    for item in measured if chosen is None else [at for at in measured if at.gpus in counts]:
        for name, gpus_of in ran.items():
            if (batch := getattr(item, name)) is not None:
                gpus_of.setdefault(batch, set()).add(item.gpus)
    own = {name: getattr(chosen, name, None) for name in _KINDS}
    for name in sorted(_KINDS, key=lambda name: (own[name] not in ran[name], name not in usual)):
        gpus_of, batch = ran[name], own[name]
        if len(gpus_of.get(batch, ())) <= len(series):
            batch = max(gpus_of, key=lambda batch: len(gpus_of[batch]), default=None)
        batches: Any = [] if batch is None else [batch]
        is_strong = name == "global_batch" and batches
        allowed = [n for n in sorted(counts) if not (is_strong and batches[0] % n)]
        if allowed and (batches or name in usual):
            series[_KINDS[name]] = grid.combinations(
                measured, job.node_gpus, allowed, layout=layout, **{name: batches}
            )
    return dict(sorted(series.items(), key=lambda item: all(at.gpus != gpus for at in item[1])))


#: The names of a setting that ran.
_MATCHED = ("gpus", "nodes", "local_batch", "precision", *LIMITS)


def _of_runs(
    options: Sequence[Option], settings: Sequence[Setting], names: Sequence[str]
) -> Iterator[tuple[Setting, Point]]:
    columns = [(item.identity, item) for item in reversed(options)]
    ran = {tuple(values[name] for name in names): item for values, item in columns}
    for setting in settings:
        if item := ran.get(tuple(getattr(setting, name) for name in names)):
            values = item.source, item.repeats, item.train_time_s, item.train_energy_j
            yield setting, Point(setting, *values)


def _predicted(job: Job, settings: Sequence[Setting], amount: Quantity) -> Iterator[Point]:
    times, energies = job.amounts(settings)

    def training(draws: Floats, index: int) -> Quantity:
        low, middle, high = quantiles(draws[:, index], LEVEL).tolist()
        return Quantity(middle, low, high).times(amount)

    for index, setting in enumerate(settings):
        energy_j = None if energies is None else training(energies, index)
        yield Point(setting, PREDICTED, 0, training(times, index), energy_j)


def _relative(points: Sequence[Point], base: Point) -> tuple[Point, ...]:
    """Add efficiency and speedup per doubling; their bounds are those of both times, so wide."""

    def speedup(first: Point, point: Point, power: float, factor: float) -> Quantity:
        a, b = first.time_s, point.time_s
        pairs = [(a.mean, b.mean), (a.low, b.high), (a.high, b.low)]
        ends = [None if None in pair else (pair[0] / pair[1]) ** power * factor for pair in pairs]  # type: ignore[operator]
        return Quantity(*ends) if point is not base else Quantity(ends[0])  # type: ignore[arg-type]

    related = []
    for point in points:
        efficiency = speedup(base, point, 1, base.setting.gpus / point.setting.gpus)
        doubling = None
        if halves := [one for one in points if 2 * one.setting.gpus <= point.setting.gpus]:
            power = 1 / math.log2(point.setting.gpus / halves[-1].setting.gpus)
            doubling = speedup(halves[-1], point, power, 1)
        related.append(replace(point, efficiency=efficiency, doubling=doubling))
    return tuple(related)
