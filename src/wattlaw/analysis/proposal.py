"""The scaling of a workload to a number of nodes, from runs and predictions, and a campaign."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from wattlaw.analysis.advise.amounts import needed_epochs
from wattlaw.analysis.advise.option import PREDICTED, Option, Quantity
from wattlaw.analysis.advise.possible_options import options_of_runs
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
from wattlaw.study.setting import Setting


@dataclass(frozen=True)
class Campaign:
    """What is planned: trainings on so many nodes, each of so many epochs (None: as the runs)."""

    nodes: int
    runs: int = 1
    epochs: int | None = None


@dataclass(frozen=True)
class Point:
    """A GPU count with time and energy of a training, from runs or predicted.

    ``efficiency`` is parallel efficiency relative to the smallest count that ran.
    """

    setting: Setting
    source: str
    runs: int
    time_s: Quantity
    energy_j: Quantity | None
    efficiency: Quantity | None = None

    @property
    def gpu_hours(self) -> Quantity:
        return self.time_s.times(self.setting.gpus / HOUR_S)


@dataclass(frozen=True)
class Proposal:
    """The scaling of a workload to a number of nodes, and what is planned there.

    ``curve`` has the prediction at the counts of all ``points``, those that ran too.
    """

    findings: Findings
    job: Job
    campaign: Campaign
    points: tuple[Point, ...]
    curve: tuple[Point, ...]
    amount: Quantity  # units of a training
    quality: str  # what is known of it at the global batch that is planned

    @property
    def planned(self) -> Point:
        return self.points[-1]

    @property
    def base(self) -> Point:
        return next(point for point in self.points if point.runs)

    @property
    def misfit(self) -> float:
        """Return the largest error of the model's time at a count that ran, as a share."""
        pairs = zip(self.points, self.curve, strict=True)
        errors = (curve.time_s.mean / point.time_s.mean - 1 for point, curve in pairs if point.runs)
        return max(map(abs, errors))


def propose(findings: Findings, workload: str, campaign: Campaign) -> Proposal:
    """Return the scaling of a workload up to the nodes of a campaign.

    Of several kinds of hardware, the one with the most runs counts. Batch and limits are those of
    most runs. ``Refused`` if no run is done or can be predicted, or the time of a training is not
    known; ``BadInput`` if the runs do not name their nodes, or nodes or trainings are not at least
    1.
    """
    for name in ("nodes", "runs"):
        if (given := getattr(campaign, name)) < 1:
            raise BadInput(f"{name}: given {given}; allowed: a whole number from 1")
    job = max(jobs_of(findings.runs, workload), key=lambda item: len(item.observations))
    if job.unit in ("sample", "step"):
        raise Refused(f"{workload}: the time of a training is unknown: {WHY_NO_EPOCH[job.unit]}")
    if job.node_gpus is None:
        raise BadInput(
            f"--nodes: the runs of {workload} do not name their nodes; import them with a column "
            "for nodes"
        )
    comparable = comparable_runs(findings.runs, workload)
    amounts, _ = needed_epochs(comparable, findings.epochs, campaign.epochs, None)
    amount = next(iter(amounts.values()))
    rows = comparable.rows
    rows = rows[
        rows["hardware"].isna() if job.hardware is None else rows["hardware"] == job.hardware
    ]
    settings = _settings(job, campaign.nodes)
    options = options_of_runs(replace(comparable, rows=rows), amounts)
    ran = dict(_of_runs(options, settings))
    if not ran:
        raise Refused(f"{workload}: no run has the batch and the limits of most runs")
    curve = sorted(_predicted(job, settings, amount), key=lambda point: point.setting.gpus)
    points = [ran.get(point.setting, point) for point in curve]
    base = next(point for point in points if point.runs)
    shown, line = (tuple(_relative(item, base) for item in of) for of in (points, curve))
    quality = _quality(rows, points[-1].setting)
    return Proposal(findings, job, campaign, shown, line, amount, quality)


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


def _settings(job: Job, nodes: int) -> list[Setting]:
    """Return the counts that ran and doublings of nodes, up to ``nodes``, in their order."""
    node_gpus = job.node_gpus or 1
    most = nodes * node_gpus
    counts = {item.gpus for item in job.settings if item.gpus < most} | {most}
    counts |= {node_gpus * 2**k for k in range(nodes.bit_length()) if 2**k < nodes}
    try:
        return grid.combinations(job.settings, node_gpus, sorted(counts))
    except BadInput:  # the usual global batch cannot be divided by every count
        local = Counter(item.local_batch for item in job.settings).most_common(1)[0][0]
        return grid.combinations(
            job.settings, node_gpus, sorted(counts), local_batch=[local] if local else []
        )


#: The names of a setting that ran.
_MATCHED = ("gpus", "nodes", "local_batch", "precision", *LIMITS)


def _of_runs(
    options: Sequence[Option], settings: Sequence[Setting]
) -> Iterator[tuple[Setting, Point]]:
    columns = [(item.columns, item) for item in reversed(options)]
    ran = {tuple(values[name] for name in _MATCHED): item for values, item in columns}
    for setting in settings:
        if item := ran.get(tuple(getattr(setting, name) for name in _MATCHED)):
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


def _relative(point: Point, base: Point) -> Point:
    """Add the parallel efficiency; its bounds are those of both times, so they are wide."""
    factor = base.setting.gpus / point.setting.gpus
    time, first = point.time_s, base.time_s
    bounds: tuple[float | None, float | None] = (None, None)
    if point is not base and time.low and time.high:
        bounds = (
            (first.low or first.mean) / time.high * factor,
            (first.high or first.mean) / time.low * factor,
        )
    return replace(point, efficiency=Quantity(first.mean / time.mean * factor, *bounds))
