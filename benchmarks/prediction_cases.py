"""The cases of the prediction benchmark: what is observed, and what is predicted from it."""

from collections.abc import Iterable
from dataclasses import dataclass

from prediction_data import Job, is_packed, pollux, series
from wattlaw.analysis.predict import Observation

LARGE = (16, 32, 64)
FIRST = "T4: 1, 2, 4, 8 to 16-64 GPUs"


@dataclass(frozen=True)
class Case:
    """Observations to learn from, and those to predict."""

    contest: str
    family: str
    origin: str
    train: list[Observation]
    test: list[Observation]


def cases() -> Iterable[Case]:
    """Yield the cases of all contests but that of caps."""
    yield from t4_cases()
    for job in series():
        counts = sorted({item.setting.gpus for item in job.observations})
        if not job.is_exact or job.family == "pollux_T4_const_lbs" or len(counts) < 3:
            continue
        batch = job.observations[0].setting.local_batch
        file = "scaling_series" if batch is None else "scaling_series_weak"
        half = (len(counts) + 1) // 2
        yield _series_case(f"{file}: all but the largest", job, counts[-2], counts[-1])
        yield _series_case(f"{file}: smaller half", job, counts[half - 1], counts[half])


def t4_cases(*, with_sync: bool = False) -> Iterable[Case]:
    """Yield the cases of T4 GPUs, with or without the measured communication of each run."""
    seen = {
        FIRST: lambda s: is_packed(s) and s.gpus in (1, 2, 4, 8),
        "T4: 1, 2, 4 to 16-64 GPUs": lambda s: is_packed(s) and s.gpus in (1, 2, 4),
        "T4: 1, 2, 4 and 2 on two nodes to 16-64 GPUs": lambda s: (
            (is_packed(s) and s.gpus in (1, 2, 4)) or s.gpus_per_node == (1, 1)
        ),
    }
    for job in pollux(with_sync=with_sync):
        test = job.where(lambda s: is_packed(s) and s.gpus in LARGE)
        for contest, condition in seen.items():
            yield Case(contest, job.name, job.origin, job.where(condition), test)


def _series_case(contest: str, job: Job, last_seen: int, first_wanted: int) -> Case:
    train = job.where(lambda setting: setting.gpus <= last_seen)
    test = job.where(lambda setting: setting.gpus >= first_wanted)
    return Case(contest, job.family, job.origin, train, test)
