"""The gallery: all figures, in the order of the report's sections."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import Limit
from wattlaw.report.charts import Spec
from wattlaw.report.topics import (
    batch,
    caps,
    energy,
    prediction,
    scaling,
    utilisation,
    verdict,
)
from wattlaw.report.topics import (
    decision_course as decision,
)
from wattlaw.study.labels import LIMIT_NAMES

_LIMITS: tuple[tuple[str, Limit], ...] = (("cap", "power_limit_w"), ("clock", "clock_limit_mhz"))


@dataclass(frozen=True)
class Figure:
    """A chart with the text around it.

    ``draw`` returns None if the findings have no data for it. ``caption`` explains it, in sentences
    of plain text. The default page leaves out a figure with ``is_extra``, because another one has
    the same data.
    """

    name: str
    title: str
    section: str
    draw: Callable[[Findings], Spec | None]
    caption: str
    is_extra: bool = False

    def chart(self, findings: Findings) -> Spec | None:
        chart = self.draw(findings)
        if chart is not None:
            chart["title"]["text"] = self.title
        return chart


def _by_limit(
    name: str, title: str, section: str, draw: Callable[..., Any], caption: str
) -> Iterator[Figure]:
    """Yield a figure by power cap and one by SM clock."""
    for short, limit in _LIMITS:
        by = f"{title} by {LIMIT_NAMES[limit]}"
        yield Figure(f"{name}_by_{short}", by, section, partial(draw, limit=limit), caption)


GALLERY: tuple[Figure, ...] = (
    Figure(
        "pareto", "Settings by time and energy", "advice", verdict.pareto,
        "Each point is the mean time of a setting and its mean energy or, without energies, its "
        "GPU-hours. Lower left is better: no setting is better in both than one on the Pareto "
        "front.",
    ),
    Figure(
        "epoch_time", "Training time", "scaling", scaling.epoch_time,
        "The axes are logarithmic, so a power law is a straight line. Runs with caps and clocks "
        "are left out. Points of different lines are shifted by a few pixels.",
    ),
    *_by_limit(
        "epoch_time", "Training time", "scaling", scaling.epoch_time_by_limit,
        "A limit that changes alpha shifts a line; a limit that changes beta tilts it.",
    ),
    Figure(
        "speedup", "Speedup", "scaling", scaling.speedup_figure,
        "The speedup is the ratio of geometric mean times to the reference count of workers.",
    ),
    Figure(
        "predictions", "Predicted training time", "prediction", prediction.curves,
        "The model of a step knows nodes and batches, so it predicts beyond the runs, where a law "
        "of N alone does not hold.",
    ),
    Figure(
        "step_parts", "What a step consists of", "prediction", prediction.step_parts,
        "The larger the share that is not compute, the less more GPUs help.",
    ),
    Figure(
        "decision", "The course of the decision", "decision", decision.course,
        "After each run, the expected regret of the leading setting is shown, and the probability "
        "that it is within the tolerance of the best.",
    ),
    Figure(
        "energy", "Training energy", "energy", energy.energy_figure,
        "The mean training energy is drawn against the workers.",
    ),
    Figure(
        "energy_speed", "Energy against speed", "energy", energy.energy_speed,
        "Both are relative to the reference count of workers: right is faster, down is less "
        "energy.", is_extra=True,
    ),
    Figure(
        "gpu_hours", "Energy against GPU-hours", "energy", energy.gpu_hours,
        "The axes are logarithmic: energy in proportion to GPU-hours is a line of slope 1.",
    ),
    Figure(
        "factor", "Power per GPU against samples and steps", "energy", energy.factor,
        "Energy per GPU-hour is a mean power: all counted energy, divided by the GPUs.",
        is_extra=True,
    ),
    *_by_limit(
        "effects", "Speed and energy", "caps", caps.effects_figure,
        "Shown are 2 and 128 workers, as in Frey et al. 2022, where both were run under limits; "
        "else the smallest and the largest count.",
    ),
    Figure(
        "utilisation", "GPU utilisation", "utilisation", utilisation.mean,
        "SM utilisation is the share of time with a kernel on the GPU, memory utilisation that in "
        "which device memory was read or written.",
    ),
    Figure(
        "joint", "Joint utilisation", "utilisation", utilisation.joint,
        "Colours show where the samples of both utilisations lie, at 2 and 128 workers, as in "
        "Frey et al. 2022, where both ran; else at the smallest and the largest count.",
    ),
    *_by_limit(
        "variation", "Variation of utilisation", "utilisation", utilisation.variation_by_limit,
        "The larger the variation, the less evenly the GPUs are used.",
    ),
    Figure(
        "strong_scaling", "Strong scaling: constant global batch", "batch",
        partial(batch.constant_batch, rule="global_batch"),
        "More workers share the same global batch, so each has less work in a step.",
        is_extra=True,
    ),
    Figure(
        "constant_local_batch", "Constant local batch", "batch",
        partial(batch.constant_batch, rule="local_batch"),
        "The global batch grows with the workers, so an epoch has fewer steps.", is_extra=True,
    ),
    Figure(
        "growing_data", "A data set that grows with N", "batch", batch.growing_data,
        "The number of samples grows with the workers: a horizontal line is ideal.",
    ),
    Figure(
        "quality", "Quality against global batch", "batch", batch.quality,
        "Points show the metric of the last evaluation. Above each panel is the verdict of the "
        "comparison with the best batch.",
    ),
)  # fmt: skip
