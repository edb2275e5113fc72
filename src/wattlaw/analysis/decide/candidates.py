"""The runs of a study that may answer its question."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun
from wattlaw.study.question import Question
from wattlaw.study.setting import LAYOUT, Setting, layout_of

#: The standard error of a run's mean step time that suffices, as a share of the tolerance.
_PRECISE = 0.25


@dataclass(frozen=True)
class Candidate:
    """A run that could be made.

    ``steps`` are its optimizer steps, with warm-up; ``overhead_s`` is the time beside them.
    ``informs`` is the setting that the run is to decide about, where it emulates it on fewer GPUs.
    """

    setting: Setting
    steps: float
    overhead_s: float = 0.0
    informs: Setting | None = None

    @property
    def decided(self) -> Setting:
        return self.informs or self.setting

    def gpu_hours(self, step_time_s: float) -> float:
        return self.setting.gpus * (self.overhead_s + self.steps * step_time_s) / 3600


def setting_of(run: PlannedRun) -> Setting:
    setting = run.setting
    return Setting(
        setting.gpus,
        nodes=min(run.nodes, setting.gpus),
        local_batch=setting.local_batch,
        gradient_accumulation=max(
            setting.gradient_accumulation, run.spec.train.gradient_accumulation
        ),
        precision=setting.precision,
        power_limit_w=setting.power_limit_w,
        clock_limit_mhz=setting.clock_limit_mhz,
        **{name: getattr(setting, name) for name in LAYOUT},
    )


def emulated_setting(run: PlannedRun, study: Study) -> Setting | None:
    gpus, per_node = run.setting.emulated_gpus, study.launch.gpus_per_node
    if gpus is None:
        return None
    nodes = None if per_node is None else ceil(gpus / per_node)
    return replace(setting_of(run), gpus=gpus, nodes=nodes, gpus_per_node=None)


def check_bounds(question: Question, study: Study, runs: Sequence[PlannedRun]) -> None:
    given = {
        "max_gpus": {"max_gpus": question.max_gpus},
        "max_global_batch": {"max_global_batch": question.max_global_batch},
        "epochs_by_batch": {"samples_by_batch": question.epochs_by_batch},
    }
    bounds = {name: Question(**bound) for name, bound in given.items()}  # type: ignore[arg-type]
    # Repeats share their setting.
    different = {(id(run.setting), run.nodes): run for run in runs}.values()
    settings = [emulated_setting(run, study) or setting_of(run) for run in different]
    if any(all(bound.allows(item) for bound in bounds.values()) for item in settings):
        return
    alone = [name for name, bound in bounds.items() if not any(map(bound.allows, settings))]
    keys = alone or [name for name in bounds if getattr(question, name)]
    gpus = sorted({item.gpus for item in settings})
    batches = sorted({item.global_batch or 0 for item in settings})
    raise BadInput(
        f"decide.{' with '.join(keys)}: excludes every setting of the sweeps; allowed: what leaves "
        f"one of them (GPUs: {join_names([str(count) for count in gpus])}; global batches: "
        f"{join_names([f'{batch:.0f}' for batch in batches])})"
    )


def may_fit_memory(setting: Setting, out_of_memory: Sequence[Setting]) -> bool:
    """Return whether a setting may fit into memory, given those that did not.

    Settings of the same precision and layout with at least as many samples in a micro-batch do not,
    unless more copies share the model's states.
    """
    samples = setting.micro_batch or 0.0
    return setting not in out_of_memory and not any(
        item.precision == setting.precision
        and layout_of(item) == layout_of(setting)
        and (item.sharding == "none" or item.dp >= setting.dp)
        and item.micro_batch and samples >= item.micro_batch
        for item in out_of_memory
    )  # fmt: skip


def is_long_enough(error: float, tolerance: float) -> bool:
    """Return whether more steps of a run would hardly change a decision.

    ``error`` is the standard error of its mean step time, as a share of it: of n independent steps,
    their coefficient of variation over sqrt(n). ``tolerance`` is the regret that does not matter.
    """
    return error <= _PRECISE * tolerance
