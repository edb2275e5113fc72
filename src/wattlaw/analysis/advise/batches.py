"""Which global batches may be recommended: those whose quality is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.laws.batch_effects import FALLS, BatchQuality, quality_by_batch
from wattlaw.analysis.metrics.result import Caution


@dataclass(frozen=True)
class Batches:
    """The global batches that may be recommended.

    ``bound`` is the largest that is allowed although its quality is unknown; None for any.
    """

    quality: tuple[BatchQuality, ...]
    bound: float | None
    _judgements: dict[tuple[Any, ...], tuple[tuple[str, ...], bool, bool]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(
        cls, rows: pd.DataFrame, options: Sequence[Option], baseline: Option | None, *,
        any_batch: bool,
    ) -> "Batches":  # fmt: skip
        """Return the batches of runs.

        Allowed are the batch of the baseline, which is in use, and smaller ones, and those up to
        the largest of known quality. Without both, the smallest batch of the runs is allowed.
        """
        batches = cls(quality_by_batch(rows), None)
        if any_batch:
            return batches
        if baseline is not None and baseline.global_batch is not None:
            return replace(batches, bound=baseline.global_batch)
        known = any(batches.judged(option).quality_known for option in options)
        sizes = [option.global_batch for option in options if option.global_batch is not None]
        return replace(batches, bound=0 if known else min(sizes, default=0))

    def judged(self, option: Option) -> Option:
        """Return an option with what is known of the quality at its global batch."""
        batch = option.global_batch
        if batch is None:
            return option
        key = batch, *(option.setting[name] for name in _SAME)
        if key not in self._judgements:
            rows = [
                row for row in self.quality
                if all(row.group.get(name) == option.setting[name] for name in _SAME)
            ]  # fmt: skip
            texts = {text: row.verdict for row in rows if (text := row.warning(batch))}
            is_known = any(batch <= (row.known_to or 0) for row in rows)
            self._judgements[key] = tuple(texts), FALLS in texts.values(), is_known
        warnings, falls, is_known = self._judgements[key]
        return replace(option, quality_warnings=warnings, falls=falls, quality_known=is_known)

    def allows(self, option: Option) -> bool:
        """Return whether an option that ``judged`` returned may be recommended."""
        batch = option.global_batch
        if batch is None or self.bound is None:
            return True
        return batch <= self.bound or (option.quality_known and not option.falls)

    def left_out(self, options: Sequence[Option]) -> tuple[int, ...]:
        """Return the global batches of options that may not be recommended."""
        left = (item.global_batch or 0 for item in options if not self.allows(item))
        return tuple(sorted(set(left)))

    def warnings(self, options: Sequence[Option], best: Option | None) -> Iterator[Caution]:
        """Yield what is left out for its batch, and what is wrong with that of the best option."""
        left = [item for item in options if not self.allows(item)]
        unknown = sorted({item.global_batch or 0 for item in left if not item.falls})
        falling = sorted({item.global_batch or 0 for item in left if item.falls})
        if unknown:
            text = (
                f"Global batches of unknown quality are left out ({_listed(unknown)}). "
                "--any-batch includes them."
            )
            yield Caution("batch-quality-unknown", text)
        if falling:
            text = f"Excluded because quality is lower: global batch {_listed(falling)}."
            yield Caution("batch-excluded", text)
        if best is not None and best.falls:
            yield Caution("quality-falls", "Quality is lower at this global batch.")
        if best is not None:
            yield from (Caution("quality", text) for text in best.quality_warnings)


_SAME = ("hardware", "precision")
_MAX_LISTED = 4


def _listed(batches: Sequence[int]) -> str:
    more = ", ..." if len(batches) > _MAX_LISTED else ""
    return ", ".join(map(str, batches[:_MAX_LISTED])) + more
