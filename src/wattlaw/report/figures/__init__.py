"""The gallery: all figures, in the order of the report's sections."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from wattlaw.analysis.caps.limits import Limit
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import LIMIT_NAMES
from wattlaw.report.figures import (
    advice,
    batch,
    data,
    decision,
    energy,
    limits,
    prediction,
    scaling,
    utilisation,
)

_MIT, _KIT, _OURS = frozenset({"mit-2022"}), frozenset({"kit-2025"}), frozenset[str]()
_BOTH = _MIT | _KIT
_LIMITS: tuple[tuple[str, Limit], ...] = (("cap", "power_limit_w"), ("clock", "clock_limit_mhz"))


@dataclass(frozen=True)
class Figure:
    """A chart with the text around it.

    ``draw`` returns None if the findings have no data for it. ``studies`` are those that show
    this figure; ``caption`` explains it, as plain text.
    """

    name: str
    title: str
    section: str
    studies: frozenset[str]
    draw: Callable[[Findings], alt.ConcatChart | None]
    caption: str

    def chart(self, findings: Findings) -> alt.ConcatChart | None:
        """Return the chart with its title."""
        chart = self.draw(findings)
        if chart is not None:
            chart["title"]["text"] = self.title
        return chart


def _by_limit(
    name: str, title: str, section: str, draw: Callable[..., Any], by_cap: str, by_clock: str = ""
) -> Iterator[Figure]:
    """Yield a figure by power cap and one by SM clock, with their captions."""
    for (short, limit), caption in zip(_LIMITS, (by_cap, by_clock or by_cap), strict=True):
        by = f"{title} by {LIMIT_NAMES[limit]}"
        figure = partial(draw, limit=limit)
        yield Figure(f"{name}_by_{short}", by, section, _MIT, figure, caption)


GALLERY: tuple[Figure, ...] = (
    Figure(
        "pareto", "Energy against time, and what to run", "advice", _OURS, advice.pareto,
        "Each point is a setting: mean energy and time of an epoch, or of the axes' unit. For a "
        "setting on the Pareto front, no other is both faster and uses less energy. Settings left "
        "out for quality do not count",
    ),
    Figure(
        "decision", "The course of the decision", "decision", _OURS, decision.course,
        "After each run: the expected regret of the leading setting, and the probability that it "
        "is within the tolerance of the best",
    ),
    Figure(
        "epoch_time", "Training time", "scaling", _BOTH, scaling.epoch_time,
        "Training time of an epoch, or of the axis' unit, against workers, both axes logarithmic, "
        "without caps and clocks: a power law is a straight line. Points of different lines are "
        "shifted by a few pixels",
    ),
    *_by_limit(
        "epoch_time", "Training time", "scaling", scaling.epoch_time_by_limit,
        "By power cap: a cap that moves alpha shifts a line, one that moves beta tilts it",
        "By locked SM clock",
    ),
    Figure(
        "speedup", "Speedup", "scaling", _BOTH, scaling.speedup,
        "Ratio of geometric mean times to the reference count of workers",
    ),
    Figure(
        "efficiency", "Parallel efficiency", "scaling", _OURS, scaling.efficiency,
        "1 is ideal; the loss is time in which GPUs wait or communicate",
    ),
    Figure(
        "alternatives", "Where the power law is not the best law", "scaling", _OURS,
        scaling.alternatives,
        "Series for which another law is selected (AICc) or which have a breakpoint",
    ),
    Figure(
        "residuals", "Residuals of the power laws", "scaling", _OURS, scaling.residuals,
        "A pattern, such as an arch, shows that the power law does not describe the data fully",
    ),
    Figure(
        "exponents", "Exponents and published ones", "scaling", _MIT, scaling.exponents,
        "Published values are those of Frey et al. 2022, on their hardware and range of N",
    ),
    Figure(
        "predictions", "Predicted training time", "prediction", _OURS, prediction.curves,
        "Medians and 90 % intervals of the model of a step; it knows nodes and batches, so it "
        "predicts beyond the runs, where a law of N alone does not hold",
    ),
    Figure(
        "step_parts", "What a step consists of", "prediction", _OURS, prediction.step_parts,
        "The larger the share that is not compute, the less more GPUs help",
    ),
    Figure(
        "energy", "Training energy", "energy", _BOTH, energy.energy,
        "Mean training energy of an epoch, or of the axis' unit, against workers",
    ),
    Figure(
        "energy_parts", "Training energy by part", "energy", _KIT, energy.energy_parts,
        "Energy of the GPUs and of the other parts of the machines that have a meter",
    ),
    Figure(
        "energy_speed", "Energy against speed", "energy", _MIT, energy.energy_speed,
        "Both relative to the reference count of workers: right is faster, down is less energy",
    ),
    Figure(
        "power", "Power of a GPU", "energy", _OURS, energy.power,
        "It falls if workers spend more of their time waiting",
    ),
    Figure(
        "gpu_hours", "Energy against GPU-hours", "energy", _KIT, energy.gpu_hours,
        "Both of the same work and on logarithmic axes, on which energy in proportion to GPU-hours "
        "is a line of slope 1",
    ),
    Figure(
        "factor", "Power per GPU against samples and steps", "energy", _KIT, energy.factor,
        "Energy per GPU-hour as a mean power: all counted energy, divided by the GPUs",
    ),
    *_by_limit(
        "effects", "Speed and energy", "caps", limits.effects,
        "At the smallest and at the largest count of workers that were run under caps",
        "At the smallest and at the largest count of workers that were run at locked clocks",
    ),
    *_by_limit(
        "exponents", "Exponent", "caps", limits.exponents,
        "Above each panel: the verdict of the tests of a difference and of equivalence",
    ),
    Figure(
        "utilisation", "GPU utilisation", "utilisation", _MIT, utilisation.utilisation,
        "SM utilisation is the share of time with a kernel on the GPU, memory utilisation that in "
        "which device memory was read or written",
    ),
    Figure(
        "joint", "Joint utilisation", "utilisation", _MIT, utilisation.joint,
        "Where the samples of both utilisations lie, at the smallest and at the largest count of "
        "workers",
    ),
    Figure(
        "variation", "Variation of utilisation", "utilisation", _OURS, utilisation.variation,
        "Without caps and clocks: the larger, the less evenly the GPUs are used",
    ),
    *_by_limit(
        "variation", "Variation of utilisation", "utilisation", utilisation.variation_by_limit,
        "By power cap: the larger, the less evenly the GPUs are used",
        "By locked SM clock",
    ),
    Figure(
        "strong_scaling", "Strong scaling: constant global batch", "batch", _KIT,
        partial(batch.constant_batch, rule="global_batch"),
        "More workers share the same global batch, so each has less work in a step",
    ),
    Figure(
        "constant_local_batch", "Constant local batch", "batch", _KIT,
        partial(batch.constant_batch, rule="local_batch"),
        "The global batch grows with the workers, so an epoch has fewer steps",
    ),
    Figure(
        "growing_data", "A data set that grows with N", "batch", _KIT, batch.growing_data,
        "Weak scaling in the samples: a horizontal line is ideal",
    ),
    Figure(
        "quality", "Quality against global batch", "batch", _KIT, batch.quality,
        "The metric of the last evaluation; above each panel the verdict of the comparison with "
        "the best batch",
    ),
    Figure(
        "targets", "To a target quality", "batch", _OURS, batch.targets,
        "Epochs to the target (statistical efficiency) and the least time to it of all settings of "
        "a batch (system efficiency)",
    ),
    Figure(
        "data_quality", "Data quality", "data", _OURS, data.data_quality,
        "The runs and energies that the other figures are based on",
    ),
)  # fmt: skip
