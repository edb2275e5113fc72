"""Predictions from a job's posterior, and what they rest on."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.predict import model_error
from wattlaw.analysis.predict.host_power import HostPower
from wattlaw.analysis.predict.intervals import Basis, Components, Prediction, pair
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.parameters import LEARNED, Priors
from wattlaw.analysis.predict.posterior import Fitted, fit
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import percent
from wattlaw.study.setting import LAYOUT, Setting

#: A model that misses its own runs by more says so, as it does for a tenth of the public series.
_MISFIT = 3 * model_error.TIME_ERROR


def predict(
    observations: Sequence[Observation],
    settings: Sequence[Setting],
    *,
    seed: int = 0,
    baseline: Setting | None = None,
    samples_per_epoch: float | None = None,
    epochs: float | None = None,
    workload: str | None = None,
    hardware: str | None = None,
    host: HostPower | None = None,
    energy_is: str | None = None,
    priors: Priors = LEARNED,
) -> list[Prediction]:
    """Return predictions of settings, measured or not.

    ``observations`` are all runs of one workload on one kind of hardware: batches, limits and node
    counts of one call inform each other. Equal inputs and seeds give equal predictions.
    ``p_faster`` compares with ``baseline``; ``host`` is the power that the energy counts beside the
    GPUs.

    ``BadInput``: There is no observation, or samples or epochs are not above 0.

    Examples
    --------
    >>> seen = [
    ...     Observation(Setting.packed(gpus, 4, local_batch=32), step_time_s)
    ...     for gpus, step_time_s in ((1, 0.20), (2, 0.21), (4, 0.22), (8, 0.31))
    ... ]
    >>> [row] = predict(seen, [Setting.packed(32, 4, local_batch=32)])
    >>> low, high = row.step_time_s_ci
    >>> 0.2 < low < row.step_time_s < high
    True
    """
    for name, value in (("samples_per_epoch", samples_per_epoch), ("epochs", epochs)):
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"{name}: given {value!r}; allowed: a number > 0")
    if not settings:
        return []
    posterior = fit(observations, seed=seed, priors=priors)
    compared = [*settings, *([baseline] if baseline else [])]
    steps, times, powers = posterior.runs(compared)
    medians = [
        np.median(np.broadcast_to(getattr(steps, name), times.shape), axis=0)
        for name in ("compute_s", "communication_s", "input_s", "waiting_s")
    ]
    reference = times[:, -1] / compared[-1].samples if baseline else None
    watts = None
    if powers is not None:
        watts = powers[:, : len(settings)] * [item.gpus for item in settings]
        if host is not None:
            watts = watts + host.draws(settings, posterior.draws, seed)
    measured = MeasuredRange.of(observations)
    fixed_s = 0.0 if posterior.epoch_s is None else posterior.epoch_s
    rows = []
    for index, setting in enumerate(settings):
        step_s = times[:, index]
        per_sample_s = step_s / setting.samples
        power_w = None if powers is None else powers[:, index]
        epoch_s = energy_j = None
        if samples_per_epoch is not None:
            epoch_s = step_s * (samples_per_epoch / setting.samples) + fixed_s
        if watts is not None:
            energy_j = step_s * watts[:, index] / setting.samples
        components = Components(*(float(median[index]) for median in medians))
        unknown = set(posterior.prior_only) & _relevant(setting)
        row = Prediction(
            workload=workload,
            hardware=hardware,
            setting=setting,
            **pair("step_time_s", step_s),
            **pair("time_per_sample_s", step_s, 1 / setting.samples),
            **pair("epoch_time_s", epoch_s),
            **pair("train_time_s", None if epochs is None else epoch_s, epochs or 1.0),
            **pair("power_per_gpu_w", power_w),
            **pair("energy_per_sample_j", energy_j),
            components=components,
            bottleneck=components.bottleneck,
            p_faster=None if reference is None else float((per_sample_s < reference).mean()),
            rests_on=_basis(posterior, unknown),
            extrapolates=measured.exceeded_by(setting),
            energy_is=None if energy_j is None else energy_is,
            warnings=_warnings(posterior, setting, unknown),
            seed=posterior.seed,
        )
        rows.append(row)
    return rows


def _basis(posterior: Fitted, unknown: set[str]) -> Basis:
    seen = [item.setting for item in posterior.observations]
    return Basis(
        observations=len(seen),
        gpus=tuple(sorted({item.gpus for item in seen})),
        nodes=tuple(sorted({item.nodes for item in seen if item.nodes})),
        local_batches=tuple(sorted({item.local_batch for item in seen if item.local_batch})),
        prior_only=tuple(name for name in posterior.prior_only if name in unknown),
        priors=posterior.priors,
    )


def _relevant(setting: Setting) -> set[str]:
    """Return the groups of parameters that a setting's time depends on and data may not inform."""
    is_placed, many = setting.gpus_per_node is not None, setting.gpus > 1
    groups = {"communication"} if many else set()
    if many and (not is_placed or max(setting.gpus_per_node or ()) > 1):
        groups.add("network inside a node")
    if many and (not is_placed or (setting.nodes or 1) > 1):
        groups.add("network between nodes")
    if setting.power_limit_w or setting.clock_limit_mhz:
        groups |= {"clock", "power"}
        groups |= {"power of communication at lower clocks"} if many else set()
    return groups


_ORDERED = ("gpus", "nodes", "local_batch", "power_limit_w", "clock_limit_mhz")
_UNORDERED = ("precision", "gradient_accumulation", *LAYOUT)
#: Where layouts differ, micro-batches are chosen, and their number follows.
_UNORDERED_OF_LAYOUTS = ("precision", "micro_batch", *LAYOUT)


@dataclass(frozen=True)
class MeasuredRange:
    """The values of observations: the least and the largest, or all where they have no order."""

    bounds: Mapping[str, tuple[float, float]]
    values: Mapping[str, Collection[Any]]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "MeasuredRange":
        has_layouts = any(item.network is not None for item in observations)
        unordered = _UNORDERED_OF_LAYOUTS if has_layouts else _UNORDERED
        values = {
            name: {getattr(item.setting, name) for item in observations}
            for name in (*_ORDERED, *unordered)
        }
        known = {name: values[name] - {None} for name in _ORDERED}
        bounds = {name: (min(of_name), max(of_name)) for name, of_name in known.items() if of_name}
        return cls(bounds, {name: values[name] for name in unordered})

    def exceeded_by(self, setting: Setting) -> tuple[str, ...]:
        outside = []
        for name in _ORDERED:
            value = getattr(setting, name)
            low, high = self.bounds.get(name, (math.inf, -math.inf))
            if value is not None and not low <= value <= high:
                outside.append(name)
        outside += [n for n, seen in self.values.items() if getattr(setting, n) not in seen]
        return tuple(outside)


def _warnings(posterior: Fitted, setting: Setting, unknown: set[str]) -> tuple[Caution, ...]:
    seen = [item.setting for item in posterior.observations]
    precisions = {item.precision for item in seen}
    limits = {(item.power_limit_w, item.clock_limit_mhz) for item in seen}
    own = setting.power_limit_w, setting.clock_limit_mhz
    conditions = (
        ("between-nodes-assumed", "network between nodes" in unknown),
        ("inside-node-assumed", "network inside a node" in unknown),
        ("limits-assumed", len(limits) == 1 and own not in limits),
        ("placement-unknown", setting.gpus_per_node is None and setting.gpus > 1),
        ("batch-unknown", setting.local_batch is None),
        ("precision-assumed", setting.precision not in precisions),
    )
    texts = (Caution(code, _TEXTS[code]) for code, applies in conditions if applies)
    return (*texts, *misfit_cautions(posterior))


def misfit_cautions(posterior: Fitted) -> Iterator[Caution]:
    if (missed := posterior.misfit) > _MISFIT:
        text = (
            f"The model misses the runs that it rests on by {percent(missed, 2)}: they are noisy, "
            "or depend on what it does not contain. Intervals are wider for it; repeat some runs."
        )
        yield Caution("misfit", text)


_TEXTS = {
    "between-nodes-assumed": "No run used several nodes. The time of the network between nodes is "
    "assumed from other clusters; measure a run on two nodes.",
    "inside-node-assumed": "No run used several GPUs of a node. Their communication is assumed.",
    "limits-assumed": "All runs had the same power and clock limits, or none. The effect of others "
    "is assumed; measure a second limit.",
    "placement-unknown": "The runs do not say on how many nodes they were. The number of GPUs of a "
    "node is one of the unknowns; set --gpus-per-node if it is known.",
    "batch-unknown": "The local batch is not known. Each GPU is assumed to do the same work in all "
    "runs.",
    "precision-assumed": "No run used this precision. Its speed is assumed.",
}
