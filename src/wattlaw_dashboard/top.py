"""``wattlaw top``."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.options import option
from wattlaw.common import formatting as fmt
from wattlaw.common.terminal import escape_invisible
from wattlaw.running.run_status import StatusPoller
from wattlaw.store.store import Store
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw_dashboard import dashboard_overview as view
from wattlaw_dashboard.tails import Device

#: Steps of a sparkline, and its seconds.
_BARS, _SPARK_S = " ▁▂▃▄▅▆▇█", 20
#: Rows of each table: a terminal has few lines.
_MOST_DEVICES, _MOST_RUNS = 16, 6
#: Values of a device by their headings.
_COLUMNS = {
    "power W": "power_w", "limit W": "power_limit_w", "use %": "sm_util",
    "clock MHz": "sm_clock_mhz", "°C": "temperature_c", "cores": "cpu_cores",
}  # fmt: skip


def top(
    stores: Annotated[
        list[Path] | None, typer.Argument(metavar="STORE", help="Results folders.")
    ] = None,
    seconds: Annotated[float, option("S", "Time between two states.", min=0.2, max=3600)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and end.")] = False,
) -> int:
    """Show running studies in the terminal, live.

    If the output is no terminal, it prints the state once.
    """
    paths = [Store.existing(path).path for path in dict.fromkeys(stores or [Path("wattlaw-store")])]
    console, states = Console(), _states(paths)
    if once or not console.is_terminal:
        console.print(next(states))
        return 0
    with Live(next(states), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(seconds)
                live.update(next(states), refresh=True)
        except KeyboardInterrupt:
            return 0


def _states(paths: list[Path]) -> Iterator[Group]:
    tails, poller, due_s = view.RunTails(paths), StatusPoller(), 0.0
    while True:
        begin_s = time.monotonic()
        if begin_s >= due_s:
            overview = view.read_overview(paths, poller)
            due_s = begin_s + (time.monotonic() - begin_s) / view.SHARE
        running = view.active(overview.rows)
        devices = _devices(tails.poll(running)[0], is_running=bool(running))
        yield Group(*_summary(overview), devices, *_runs(overview))


def _summary(overview: view.Overview) -> Iterator[Text | Padding]:
    for total in view.totals(overview.rows):
        ended, runs = total.ended, len(total.rows)
        text = f"{ended:,} of {runs:,} {total.source} runs ended"
        if total.not_needed:
            text += f", {total.not_needed:,} are not needed"
        if total.left_s is not None:
            text += f", about {fmt.duration_text(total.left_s)} left"
        text += f"   ({', '.join(f'{count:,} {name}' for name, count in total.counts.items())})"
        work = f", {fmt.work_text(total.hours, total.worker())}" if total.hours else ""
        yield Text(text + work)
        bar = ProgressBar(total=max(1, runs - total.not_needed), completed=ended, width=60)
        yield Padding(bar, 0)
    if overview.origin:
        yield Text(f"All runs are {overview.origin}: nothing was measured here.")
    for line in (*overview.skipped, *overview.decisions, *overview.notes):
        yield Text(escape_invisible(line))


def _devices(devices: list[Device], *, is_running: bool) -> Table | Text:
    if not devices:
        return Text("No samples of running runs." if is_running else "No run is running.")
    shown = sorted(devices, key=lambda item: (item.host, item.kind != "gpu", item.id))
    known = {heading: name for heading, name in _COLUMNS.items()
             if any(device.last(name) is not None for device in shown[:_MOST_DEVICES])}  # fmt: skip
    columns = ("device", "host", *known, f"power, {_SPARK_S} s")
    table = make_table(columns, (), right=known, no_wrap=columns)
    for device in shown[:_MOST_DEVICES]:
        values = [fmt.number(device.last(name)) for name in known.values()]
        origin = f" ({device.origin})" if device.origin else ""
        name = escape_invisible(device.id[-24:] + origin)
        powers_w = list(device.series("power_w").values())[-_SPARK_S:]
        top_w = max([*powers_w, 1e-9])
        levels = (max(0.0, power_w) / top_w * (len(_BARS) - 1) for power_w in powers_w)
        line = "".join(_BARS[round(level)] for level in levels)
        table.add_row(name, escape_invisible(device.host), *values, line)
    if (more := len(shown) - _MOST_DEVICES) > 0:
        table.add_row(f"and {fmt.plural(more, 'device')} more")
    return table


def _runs(overview: view.Overview) -> Iterator[Table]:
    ended = ("done", OUT_OF_MEMORY)
    tables = {"running and queued": view.ACTIVE, "failures": view.FAILED, " or ".join(ended): ended}
    for title, states in tables.items():
        rows = [row for row in overview.rows if row.status in states]
        if not rows:
            continue
        counts = Counter(row.source for row in rows)
        shown = ", ".join(f"{count:,} {source}" for source, count in counts.items())
        same = view.failures(rows) or [[row] for row in view.newest(rows, _MOST_RUNS)]
        texts = (
            (each[0].title + (f" and {len(each) - 1:,} more" if each[1:] else ""), each[0].status,
             each[0].reason or "") for each in same[:_MOST_RUNS]
        )  # fmt: skip
        columns = (f"{title} ({shown})", "state", "reason")
        yield make_table(columns, (map(escape_invisible, each) for each in texts))
