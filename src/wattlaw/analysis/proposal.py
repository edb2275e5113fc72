"""The scaling of a workload to a number of nodes, from runs and predictions, and a campaign."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wattlaw.analysis.advice.epochs import needed_epochs
from wattlaw.analysis.advice.option import PREDICTED, Option, Quantity
from wattlaw.analysis.advice.options import options_of_runs
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.comparable_runs import WHY_NO_EPOCH, comparable_runs
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.metrics import HOUR_S
from wattlaw.analysis.prediction import grid
from wattlaw.analysis.prediction.job import Job, jobs_of
from wattlaw.analysis.prediction.results import LEVEL, quantiles
from wattlaw.analysis.prediction.settings import TrainingSetting
from wattlaw.errors import BadInput, Refused


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

    setting: TrainingSetting
    source: str
    runs: int
    time_s: Quantity
    energy_j: Quantity | None
    efficiency: Quantity | None = None

    @property
    def gpu_hours(self) -> Quantity:
        """Return GPUs x hours of a training."""
        return self.time_s.times(self.setting.gpus / HOUR_S)


@dataclass(frozen=True)
class Proposal:
    """The scaling of a workload to a number of nodes, and what is planned there."""

    findings: Findings
    job: Job
    campaign: Campaign
    points: tuple[Point, ...]
    amount: Quantity  # units of a training

    @property
    def planned(self) -> Point:
        """Return the count that is asked for."""
        return self.points[-1]

    @property
    def base(self) -> Point:
        """Return the smallest count that ran."""
        return next(point for point in self.points if point.runs)


def propose(findings: Findings, workload: str, campaign: Campaign) -> Proposal:
    """Return the scaling of a workload up to the nodes of a campaign.

    Of several kinds of hardware, the runs on the kind with the most runs count. Batch and limits
    are those of most runs.

    Raises
    ------
    Refused
        No run is done or can be predicted, or the time of a training is not known.
    BadInput
        The runs do not name their nodes, or the nodes or trainings are not at least 1.
    """
    if campaign.nodes < 1 or campaign.runs < 1:
        raise BadInput("--nodes and --runs: allowed: whole numbers from 1")
    job = max(jobs_of(findings.runs, workload), key=lambda item: len(item.observations))
    if job.unit in ("sample", "step"):
        raise Refused(f"{workload}: the time of a training is unknown: {WHY_NO_EPOCH[job.unit]}")
    if job.node_gpus is None:
        raise BadInput(
            f"--nodes: the runs of {workload} do not name their nodes; import them with a column "
            "for nodes"
        )
    comparable = comparable_runs(findings.runs, workload)
    needed = needed_epochs(comparable, findings.epochs, campaign.epochs, None)
    amount = needed.for_setting({}) or Quantity(1.0, 1.0, 1.0)
    rows = comparable.rows
    rows = rows[
        rows["hardware"].isna() if job.hardware is None else rows["hardware"] == job.hardware
    ]
    settings = _settings(job, campaign.nodes)
    options = options_of_runs(replace(comparable, rows=rows), lambda _: amount)
    ran = dict(_of_runs(options, settings))
    others = [setting for setting in settings if setting not in ran]
    points = [*ran.values(), *_predicted(job, others, amount)]
    points.sort(key=lambda point: point.setting.gpus)
    if not ran:
        raise Refused(f"{workload}: no run has the batch and the limits of most runs")
    base = next(point for point in points if point.runs)
    return Proposal(
        findings, job, campaign, tuple(_relative(point, base) for point in points), amount
    )


def _settings(job: Job, nodes: int) -> list[TrainingSetting]:
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
    options: Sequence[Option], settings: Sequence[TrainingSetting]
) -> Iterator[tuple[TrainingSetting, Point]]:
    """Yield the settings that ran."""
    ran = {tuple(item.setting[name] for name in _MATCHED): item for item in reversed(options)}
    for setting in settings:
        if item := ran.get(tuple(getattr(setting, name) for name in _MATCHED)):
            values = item.source, item.repeats, item.train_time_s, item.train_energy_j
            yield setting, Point(setting, *values)


def _predicted(job: Job, settings: Sequence[TrainingSetting], amount: Quantity) -> Iterator[Point]:
    if not settings:
        return
    times, energies = job.amounts(settings)
    for index, setting in enumerate(settings):
        low, middle, high = quantiles(times[:, index], LEVEL).tolist()
        energy_j = None
        if energies is not None:
            ends = quantiles(energies[:, index], LEVEL).tolist()
            energy_j = Quantity(ends[1], ends[0], ends[2]).times(amount)
        yield Point(setting, PREDICTED, 0, Quantity(middle, low, high).times(amount), energy_j)


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
