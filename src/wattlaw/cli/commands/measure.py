"""``wattlaw measure``."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import ClockOption, PowerOption, PriorClocksOption, option, positive
from wattlaw.errors import BadInput
from wattlaw.files import write_text
from wattlaw.launch import command as measured
from wattlaw.launch.summary import PhaseSummary, phase_summaries
from wattlaw.limits.requests import Limits
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.text import collapse_whitespace, quote, shorten

app = typer.Typer()
_MOST_CHARACTERS = 200  # of the command in the summary


@app.command(context_settings={"allow_interspersed_args": False})
def measure(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Command to run.")],
    store: Annotated[Path, option("DIR", "Results folder.", "-o", "--store")] = Path(
        "wattlaw-store"
    ),
    power_limit: PowerOption = None,
    clock_limit: ClockOption = None,
    prior_clocks: PriorClocksOption = None,
    sample_hz: Annotated[
        float, typer.Option(max=1000, callback=positive, help="Samples per second.")
    ] = 10.0,
    assume_cpu_w: Annotated[
        float | None, option("W", "Power per busy CPU core, for an estimate.", callback=positive)
    ] = None,
    json_to: Annotated[
        Path | None, option("FILE", "Also write the summary to a JSON file.", "--json")
    ] = None,
) -> int:
    """Measure the time, energy and utilization of a command.

    The exit code is that of the command.
    """
    limits = Limits(power_limit, clock_limit)
    if json_to is not None and str(json_to).startswith("-"):
        raise BadInput(f"measure: --json: {quote(str(json_to))} is not a file name")
    if json_to is not None and not json_to.absolute().parent.is_dir():
        raise BadInput(f"measure: --json {json_to}: the folder does not exist")
    done = measured.measure(
        command,
        store,
        limits=limits,
        prior_clocks_are_default=prior_clocks == "default",
        sample_hz=sample_hz,
        assume_cpu_w=assume_cpu_w,
    )
    if done.record is None or done.folder is None:
        return done.exit_code
    phases = phase_summaries(done.folder)
    _show(done.record, done.folder, phases[0])
    if json_to is not None:
        summary = {"run": str(done.folder.path), "exit_code": done.exit_code, **_to_dict(phases[0])}
        write_text(json_to, json.dumps(summary) + "\n", durable=False)
    return done.exit_code


def _show(record: RunRecord, folder: RunFolder, phase: PhaseSummary) -> None:
    console = Console(stderr=True)
    table = Table(title="wattlaw measure", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _lines(record, folder, phase):
        table.add_row(name, value)
    console.print(table)


def _lines(record: RunRecord, folder: RunFolder, phase: PhaseSummary) -> list[tuple[str, str]]:
    lines = [
        ("command", _command(record)),
        ("time", f"{phase.duration_s:.3f} s"),
    ]
    for part, joules in phase.energy_j.items():
        lines.append(
            (f"energy, {part}", f"{joules:,.1f} J, mean {joules / phase.duration_s:,.1f} W")
        )
    if phase.energy_j:
        counted = " and ".join(phase.energy_j)
        lines.append(
            ("energy source", f"{phase.energy_source}, {phase.energy_verdict}; {counted} only")
        )
    else:
        lines.append(("energy", "not available"))
    lines += [("", reason) for reason in phase.reasons]
    for name, value, unit in (
        ("SM utilization", phase.sm_util, "%"),
        ("GPU memory utilization", phase.mem_util, "%"),
        ("busy CPU cores", phase.cpu_cores, ""),
    ):
        if value is not None:
            lines.append((name, f"{value:.1%}" if unit else f"{value:.2f}"))
    if phase.mem_used_max_bytes is not None:
        lines.append(("maximum GPU memory", f"{phase.mem_used_max_bytes / 2**20:,.0f} MiB"))
    for limit in record.limits:
        enforced = limit.power_limit_enforced_w
        if limit.power_limit_w is not None and enforced is not None:
            lines.append(
                (
                    "power limit",
                    f"{limit.device}: {enforced:g} W (requested: {limit.power_limit_w:g} W)",
                )
            )
    for report in record.samplers:
        lines += [("not available", f"{name}: {why}") for name, why in report.unavailable.items()]
        share = report.cpu_s / report.duration_s if report.duration_s else 0.0
        lines.append(("sampler", f"{share:.2%} of a core"))
    lines += [("note", note) for note in record.notes]
    if record.reason:
        lines.append(("command ended", record.reason))
    return [*lines, ("run", str(folder.path))]


def _command(record: RunRecord) -> str:
    command = record.spec.workload.options["command"]
    line = shlex.join(map(str, command if isinstance(command, list) else [command]))
    return shorten(collapse_whitespace(line), _MOST_CHARACTERS)


def _to_dict(phase: PhaseSummary) -> dict[str, object]:
    energies = {f"{part}_energy_j": phase.energy_j.get(part) for part in ("gpu", "cpu", "dram")}
    others = ("energy_source", "energy_verdict", "sm_util", "mem_util", "cpu_cores",
              "mem_used_max_bytes")  # fmt: skip
    values = {name: getattr(phase, name) for name in others}
    return {"duration_s": phase.duration_s, **energies, **values}
