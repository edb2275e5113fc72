"""The options of an advice: those that ran, and those of them and beyond that may be recommended.

A global batch may be recommended where quality is known to hold, or where it is in use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.advise.predicted import predicted_options
from wattlaw.analysis.advise.run_options import baseline_of
from wattlaw.analysis.laws.batch_effects import FALLS, BatchQuality, quality_by_batch
from wattlaw.study.question import Question

#: Runs that differ in these columns inform different judgements of quality.
_SAME = ("hardware", "precision")


@dataclass(frozen=True)
class Offer:
    """What can be chosen from.

    ``ran`` are all options of the job that ran; those ``allowed`` need no more GPUs than may be
    used, and those ``sound`` have a batch that may be recommended too, as ``predicted`` ones have.
    ``named`` is the baseline that was asked for.
    """

    ran: tuple[Option, ...]
    allowed: tuple[Option, ...]
    sound: tuple[Option, ...]
    predicted: tuple[Option, ...]
    named: Option | None
    max_gpus: int | None
    quality: tuple[BatchQuality, ...]
    #: The largest batch that is allowed although its quality is unknown; None for any.
    bound: float | None

    @classmethod
    def of(
        cls,
        rows: pd.DataFrame,
        options: Sequence[Option],
        question: Question,
        baseline: Mapping[str, Any] | None,
        *,
        any_batch: bool,
    ) -> "Offer":
        """Return the offer of the options that ran.

        Allowed are the batch of the baseline, which is in use, and smaller ones, and those up to
        the largest of known quality. Without both, the smallest batch of the runs is allowed.
        Epochs to a target are known where quality is.
        """
        quality = quality_by_batch(rows)
        ran = tuple(_judged(option, quality) for option in options)
        named = None
        if baseline is not None:
            named = ran[options.index(baseline_of(options, baseline))]
        sizes = [option.global_batch for option in ran if option.global_batch is not None]
        bound: float | None = min(sizes, default=0)
        if any_batch or question.target is not None:
            bound = None
        elif named is not None and named.global_batch is not None:
            bound = named.global_batch
        elif any(option.quality_known for option in ran):
            bound = 0
        most = question.max_gpus
        allowed = tuple(item for item in ran if item.gpus <= (most or item.gpus))
        offer = cls(ran, allowed, (), (), named, most, quality, bound)
        offer = replace(offer, sound=tuple(filter(offer.has_sound_batch, allowed)))
        return offer.with_predicted(far=most is not None)

    def with_predicted(self, *, far: bool) -> "Offer":
        """Return the offer with predicted options, with ``far`` those outside of the range too."""

        def judge(option: Option) -> Option | None:
            judged = _judged(option, self.quality)
            is_allowed = judged.gpus <= (self.max_gpus or judged.gpus)
            return judged if is_allowed and self.has_sound_batch(judged) else None

        predicted = predicted_options(self.ran, judge, self.max_gpus, far=far)
        return replace(self, predicted=tuple(predicted))

    def has_sound_batch(self, option: Option) -> bool:
        """Return whether the batch of an option may be recommended."""
        batch = option.global_batch
        if batch is None or self.bound is None:
            return True
        return batch <= self.bound or (option.quality_known and not option.falls)

    @property
    def offered(self) -> tuple[Option, ...]:
        """The options to choose from; all that ran where none may be recommended."""
        return (*self.sound, *self.predicted) or self.ran

    @property
    def by_energy(self) -> bool:
        """Whether energy is known, so that GPU-hours do not replace it."""
        return any(option.energy_j for option in self.offered if not option.is_predicted)

    @property
    def compared(self) -> list[Option]:
        return [item for item in self.offered if item.energy_j or not self.by_energy]

    @property
    def base(self) -> Option:
        """The option that savings refer to."""
        return self.named or fastest(self.compared)

    @property
    def batches_left_out(self) -> list[Option]:
        """The options that would be allowed with another batch."""
        return [item for item in self.allowed if item not in self.sound]


def _judged(option: Option, quality: Sequence[BatchQuality]) -> Option:
    """Return an option with what is known of the quality at its global batch."""
    batch = option.global_batch
    if batch is None:
        return option
    rows = [
        row for row in quality if all(row.group.get(name) == option.setting[name] for name in _SAME)
    ]
    texts = {text: row.verdict for row in rows if (text := row.warning(batch))}
    return replace(
        option,
        quality_warnings=tuple(texts),
        falls=FALLS in texts.values(),
        quality_known=any(batch <= (row.known_to or 0) for row in rows),
    )


def fastest(options: Sequence[Option]) -> Option:
    """Return the fastest option of runs; a predicted one only where there is no other."""
    of_runs = [option for option in options if not option.is_predicted]
    return min(of_runs or options, key=lambda option: option.train_time_s.mean)
