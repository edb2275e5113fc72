"""The gallery: one function per figure, in the order of the report's sections."""

from wattlaw.report.figures import (
    advice,
    batch,
    data,
    energy,
    exponents,
    hours,
    laws,
    limits,
    scaling,
    targets,
    utilisation,
)
from wattlaw.report.figures.figure import BOTH, KIT, MIT, Figure

_MIT, _KIT, _OURS = frozenset({MIT}), frozenset({KIT}), frozenset[str]()

GALLERY: tuple[Figure, ...] = (
    Figure(
        "pareto", "Energy against time, and what to run", "advice", _OURS, advice.pareto,
        "Each point is a setting: mean energy and time of an epoch. On the Pareto front no other "
        "setting is both faster and takes less energy, among the settings not left out for quality",
    ),
    Figure(
        "epoch_time", "Seconds per epoch", "scaling", BOTH, scaling.epoch_time,
        "Training time of an epoch against workers, both axes logarithmic, without caps and "
        "clocks: a power law is a straight line. Points of different lines are set apart sideways "
        "by a few pixels",
    ),
    Figure(
        "epoch_time_by_cap", "Seconds per epoch by power cap", "scaling", _MIT,
        scaling.epoch_time_by_cap,
        "By power cap: a cap that moves alpha shifts a line, one that moves beta tilts it",
    ),
    Figure(
        "epoch_time_by_clock", "Seconds per epoch by SM clock", "scaling", _MIT,
        scaling.epoch_time_by_clock, "By locked SM clock",
    ),
    Figure(
        "speedup", "Speedup", "scaling", BOTH, scaling.speedup,
        "Ratio of geometric mean times to the reference count of workers",
    ),
    Figure(
        "efficiency", "Parallel efficiency", "scaling", _OURS, scaling.efficiency,
        "1 is ideal; what is lost is time in which GPUs wait or communicate",
    ),
    Figure(
        "alternatives", "Where the power law is not the best law", "scaling", _OURS,
        laws.alternatives,
        "Series for which another law is selected (AICc) or whose power law bends",
    ),
    Figure(
        "residuals", "Residuals of the power laws", "scaling", _OURS, laws.residuals,
        "A pattern in them, such as an arch, says that the power law is not the whole story",
    ),
    Figure(
        "exponents", "Exponents beside the published ones", "scaling", _MIT, exponents.exponents,
        "Published values are those of Frey et al. 2022, on their hardware and range of N",
    ),
    Figure(
        "energy", "Energy per epoch", "energy", BOTH, energy.energy,
        "Mean training energy of an epoch against workers",
    ),
    Figure(
        "energy_parts", "Energy per epoch by part", "energy", _KIT, energy.energy_parts,
        "What the GPUs and the other metered parts of the machines take",
    ),
    Figure(
        "energy_speed", "Energy against speed", "energy", _MIT, energy.energy_speed,
        "Both relative to the reference count of workers: to the right is faster, down is less "
        "energy",
    ),
    Figure(
        "power", "Power of a GPU", "energy", _OURS, energy.power,
        "Falls as workers spend more of their time waiting",
    ),
    Figure(
        "gpu_hours", "Energy against GPU-hours", "energy", _KIT, hours.gpu_hours,
        "Both per epoch and on logarithmic axes, on which energy in proportion to GPU-hours is a "
        "line of slope 1",
    ),
    Figure(
        "factor", "Power per GPU against samples and steps", "energy", _KIT, hours.factor,
        "Energy per GPU-hour as a mean power, all that is counted shared among the GPUs",
    ),
    Figure(
        "effects_by_cap", "Speed and energy by power cap", "caps", _MIT, limits.effects_by_cap,
        "At the smallest and at the largest count of workers that were run under caps",
    ),
    Figure(
        "effects_by_clock", "Speed and energy by SM clock", "caps", _MIT, limits.effects_by_clock,
        "At the smallest and at the largest count of workers that were run at locked clocks",
    ),
    Figure(
        "exponents_by_cap", "Exponent by power cap", "caps", _MIT, limits.exponents_by_cap,
        "Above each panel: what the tests of a difference and of equivalence say together",
    ),
    Figure(
        "exponents_by_clock", "Exponent by SM clock", "caps", _MIT, limits.exponents_by_clock,
        "Above each panel: what the tests of a difference and of equivalence say together",
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
    Figure(
        "variation_by_cap", "Variation of utilisation by power cap", "utilisation", _MIT,
        utilisation.variation_by_cap, "By power cap: the larger, the less evenly the GPUs are used",
    ),
    Figure(
        "variation_by_clock", "Variation of utilisation by SM clock", "utilisation", _MIT,
        utilisation.variation_by_clock, "By locked SM clock",
    ),
    Figure(
        "strong_scaling", "Strong scaling: constant global batch", "batch", _KIT,
        batch.strong_scaling,
        "More workers share the same global batch, so each has less to do in a step",
    ),
    Figure(
        "constant_local_batch", "Constant local batch", "batch", _KIT, batch.constant_local_batch,
        "The global batch grows with the workers, so an epoch has fewer steps",
    ),
    Figure(
        "growing_data", "A data set that grows with N", "batch", _KIT, batch.growing_data,
        "Weak scaling in the samples: ideal is a level line",
    ),
    Figure(
        "quality", "Quality against global batch", "batch", _KIT, batch.quality,
        "The metric of the last evaluation; above each panel what the comparison with the best "
        "batch says",
    ),
    Figure(
        "targets", "To a target quality", "batch", _OURS, targets.targets,
        "Epochs to the target (how well it learns) and the least time to it of all settings of a "
        "batch (how fast it runs)",
    ),
    Figure(
        "data_quality", "Data quality", "data", _OURS, data.data_quality,
        "What the other figures rest on",
    ),
)  # fmt: skip
