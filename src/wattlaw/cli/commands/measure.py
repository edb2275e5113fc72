"""``wattlaw measure``."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console, make_table
from wattlaw.common import formatting as fmt
from wattlaw.common.errors import BadInput
from wattlaw.common.files import write_text
from wattlaw.common.scopes import KINDS
from wattlaw.common.text import collapse_whitespace, join_names, quote, shorten
from wattlaw.measure.limits.requests import Limits
from wattlaw.running import measured_command
from wattlaw.running.instrumentation.observer import RUN
from wattlaw.running.instrumentation.steady_state import MeasuredPart, StepSummary
from wattlaw.running.summary import PhaseSummary, phase_summaries
from wattlaw.store.record import RunRecord

_MAX_CHARACTERS = 200  # of the command in the summary
#: Values of ``StepSummary`` that are not in the JSON file, and those of ``PhaseSummary`` that are.
_ONLY_STORED = {"windows", "notes", "steps_by_samples", "network", "software"}
_OF_PHASE = ("sm_util", "mem_util", "cpu_cores", "mem_used_max_bytes")

_count = partial(opts.option, min=1, max=10**9)


def measure(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command to run.")],
    store: Annotated[Path, opts.option("DIR", "Results folder.", "-o", "--store")] = Path(
        "wattlaw-store"
    ),
    power_limit: opts.PowerOption = None,
    clock_limit: opts.ClockOption = None,
    power_profile: opts.ProfileOption = None,
    prior_clocks: opts.PriorClocksOption = None,
    sample_hz: Annotated[
        float, opts.option("HZ", "Samples per second.", max=1000, callback=opts.positive)
    ] = 10.0,
    assume_cpu_w: Annotated[
        float | None,
        opts.option("W", "Power per busy CPU core, for an estimate.", callback=opts.positive),
    ] = None,
    steps: Annotated[
        int | None, _count("N", "End the command after N measured training steps.")
    ] = None,
    seconds: Annotated[
        float | None,
        opts.option("S", "End the command after S seconds of training.", callback=opts.positive),
    ] = None,
    warmup_steps: Annotated[
        int | None, _count("N", "Steps before the measured ones (20 with --steps or --seconds).")
    ] = None,
    instrument: Annotated[
        Literal["auto", "none"],
        typer.Option(help="Whether PyTorch scripts record their training steps."),
    ] = "auto",
    progress: Annotated[
        str | None,
        opts.option("PATTERN", r"Regular expression for lines of output: 'step (?P<step>\d+)'."),
    ] = None,
    json_to: Annotated[
        Path | None, opts.option("FILE", "Also write the summary to a JSON file.", "--json")
    ] = None,
) -> int:
    """Measure the time, energy and utilisation of a command.

    The exit code is that of the command; 0 if it was ended after --steps or --seconds.
    """
    if steps is not None and seconds is not None:
        raise BadInput("measure: --steps and --seconds; allowed: at most one of them")
    limits = Limits(power_limit, clock_limit, power_profile)
    if json_to is not None and str(json_to).startswith("-"):
        raise BadInput(f"measure: --json: {quote(str(json_to))} is not a file name")
    if json_to is not None and not json_to.absolute().parent.is_dir():
        raise BadInput(f"measure: --json {json_to}: the folder does not exist")
    done = measured_command.measure(
        command, store, limits=limits, prior_clocks_are_default=prior_clocks == "default",
        sample_hz=sample_hz, assume_cpu_w=assume_cpu_w,
        part=MeasuredPart(warmup_steps, steps, seconds), instrument=instrument == "auto",
        pattern=progress,
    )  # fmt: skip
    if done.record is None or done.folder is None or done.steps is None:
        return done.exit_code
    of_command = phase_summaries(done.folder)[RUN]
    of_steps = phase_summaries(done.folder, is_measured=True).get("steps")
    lines = [
        *_lines(done.record, of_command),
        *_step_lines(done.steps, of_steps),
        *_end_lines(done.record, has_energy=of_command.energy.total_j is not None),
        ("run", str(done.folder.path)),
    ]
    lines = [(name, value) for name, value in lines if value not in ("", fmt.MISSING)]
    table = make_table(("", ""), lines, title="wattlaw measure", show_header=False)
    Console(stderr=True).print(table)
    if json_to is not None:
        energy, per_step_j = of_command.energy, _energy_per_step_j(of_steps)
        summary = {
            "run": str(done.folder.path),
            "exit_code": done.exit_code,
            "duration_s": of_command.duration_s,
            "energy_j": energy.total_j,
            "energy_scope": energy.scope,
            "energy_source": energy.source(energy.scope),
            "energy_verdict": energy.verdict(energy.scope),
            **{f"{kind}_energy_j": energy.energy_j.get(kind) for kind in KINDS},
            **_qualities("energy", of_command),
            **{name: getattr(of_command, name) for name in _OF_PHASE},
            **{name: value for name, value in vars(done.steps).items() if name not in _ONLY_STORED},
            **{f"{kind}_energy_per_step_j": per_step_j.get(kind) for kind in KINDS},
            **_qualities("step_energy", of_steps),
            "notes": list(done.record.notes),
        }
        write_text(json_to, json.dumps(summary) + "\n", durable=False)
    return done.exit_code


def _lines(record: RunRecord, phase: PhaseSummary) -> list[tuple[str, str]]:
    command = record.spec.workload.options["command"]
    line = shlex.join(map(str, command if isinstance(command, list) else [command]))
    energy, memory_bytes = phase.energy, phase.mem_used_max_bytes
    memory = "" if memory_bytes is None else f"{memory_bytes / 2**20:,.0f} MiB"
    total_j = energy.total_j
    return [
        ("command", shorten(collapse_whitespace(line), _MAX_CHARACTERS)),
        ("time", f"{phase.duration_s:.3f} s"),
        *(
            (f"energy, {part}", f"{joules:,.1f} J, mean {joules / phase.duration_s:,.1f} W")
            for part, joules in energy.energy_j.items()
        ),
        ("energy of the run", "" if total_j is None else f"{total_j:,.1f} J ({energy.text()})"),
        *(("", reason) for reason in phase.reasons),
        ("SM utilisation", fmt.percent(phase.sm_util)),
        ("GPU memory utilisation", fmt.percent(phase.mem_util)),
        ("busy CPU cores", fmt.number(phase.cpu_cores)),
        ("maximum resident memory", memory),
    ]


def _step_lines(steps: StepSummary, phase: PhaseSummary | None) -> list[tuple[str, str]]:
    if steps.steps is None and steps.steps_measured is None:
        return []
    lines = [("steps", fmt.number(steps.steps))]
    count, mean_s, median_s = steps.steps_measured, steps.step_time_mean_s, steps.step_time_p50_s
    if count and mean_s and median_s:
        of = fmt.plural(count, "measured step")
        lines.append(("step time", f"{mean_s:.4g} s (median {median_s:.4g} s) of {of}"))
    for part, joules in _energy_per_step_j(phase).items():
        lines.append((f"energy per step, {part}", f"{joules:,.4g} J"))
    if steps.samples_measured and count and mean_s:
        per_s = steps.samples_measured / (mean_s * count)
        lines.append(("samples per second", f"{per_s:,.4g}"))
    world_size = ("world size", fmt.number(steps.world_size))
    return [*lines, world_size, ("layout", _layout(steps))]


def _layout(steps: StepSummary) -> str:
    """Return the kind of parallelism, the sizes above 1, and what else was seen of the layout."""
    names = ("dp", "tp", "pp", "cp", "ep")
    sizes = [f"{name} {size}" for name in names if (size := getattr(steps, name) or 1) > 1]
    others = {
        "sharding": steps.sharding, "checkpointing": steps.checkpointing,
        "micro-batch": steps.micro_batch, "accumulation": steps.gradient_accumulation,
        "tokens per sample": steps.tokens_per_sample and round(steps.tokens_per_sample),
    }  # fmt: skip
    seen = [f"{what} {value}" for what, value in others.items() if value not in (None, "none")]
    return ", ".join(filter(None, [steps.parallelism, " x ".join(sizes), *seen]))


def _end_lines(record: RunRecord, *, has_energy: bool) -> list[tuple[str, str]]:
    lines = []
    for limit in record.limits:
        wanted_w, enforced_w = limit.power_limit_w, limit.power_limit_enforced_w
        if wanted_w is not None and enforced_w is not None:
            limits = f"{limit.device}: {enforced_w:g} W (requested: {wanted_w:g} W)"
            lines.append(("power limit", limits))
    missing = dict.fromkeys(name for report in record.samplers for name in report.unavailable)
    if missing:
        what = join_names([*missing]) if has_energy else "energy"
        lines.append(("not measured", f"{what}; 'wattlaw devices' shows why"))
    lines += [("note", note) for note in record.notes]
    return [*lines, ("command ended", record.reason or "")]


def _energy_per_step_j(phase: PhaseSummary | None) -> dict[str, float]:
    """Return the energy of a measured step by kind, of those that means use."""
    if phase is None or not phase.steps:
        return {}
    energy, steps = phase.energy, phase.steps
    return {kind: j / steps for kind, j in energy.energy_j.items() if energy.is_used(kind)}


def _qualities(name: str, phase: PhaseSummary | None) -> dict[str, str | None]:
    qualities = {}
    for part in ("devices", "node"):
        energy = phase.energy if phase else None
        qualities[f"{part}_{name}_source"] = energy.sources.get(part) if energy else None
        qualities[f"{part}_{name}_verdict"] = energy.verdicts.get(part) if energy else None
    return qualities
