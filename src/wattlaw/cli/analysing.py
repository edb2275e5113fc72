"""``fit``, ``report`` and ``export``."""

import json
import sys
from collections.abc import Sequence
from itertools import tee
from pathlib import Path

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.table import Table

from wattlaw.analysis.aggregate import aggregate
from wattlaw.analysis.findings import analyse
from wattlaw.analysis.groups import group_label
from wattlaw.analysis.laws.fits import SeriesFit, SeriesFits, fit_groups
from wattlaw.analysis.laws.power_law import PowerLaw
from wattlaw.analysis.metrics import run_metrics
from wattlaw.analysis.series import ENERGY, fit_series, scaling_series
from wattlaw.cli.console import Console
from wattlaw.errors import BadInput, Refused
from wattlaw.store.store import Store
from wattlaw.store.tables import KINDS, read_stores, read_table, write_table
from wattlaw.text import collapse_whitespace, shorten

TABLES = ("runs", "epochs", "telemetry", "statistics", "metrics", "settings", "fits")
ENERGY_IS = "energy_is"
_WIDE = 150


def fit(source: Sequence[Path], x: str, y: str, by: str | None, *, as_json: bool) -> int:
    """Fit laws to stores or to a table."""
    columns = [name.strip() for name in by.split(",") if name.strip()] if by else []
    for path in source:
        if not path.exists():
            raise BadInput(f"{path}: no such file or store")
        if path.is_file() and len(source) > 1:
            raise BadInput(f"{path}: is a table; allowed: one table, or one or more stores")
    try:
        fits = _fits(source, x, y, columns, series=by is None and x == "gpus")
    except BadInput as error:
        told = str(error)
        raise BadInput(
            told if told.startswith(str(source[0])) else f"{source[0]}: {told}"
        ) from None
    for group, reason in fits.refusals:
        words = f"no law for {shorten(group_label(group)) or 'the table'}: {reason}"
        print(f"wattlaw: {collapse_whitespace(words)}", file=sys.stderr)
    if as_json:
        print(json.dumps([row.to_dict() for row in fits.rows], allow_nan=False))
    elif fits.laws:
        _show(fits)
    if fits.laws:
        return 0
    if fits.refusals:
        return Refused.exit_code
    raise Refused(f"{source[0]}: no rows to fit (no runs done, or no series of several {x})")


def _fits(source: Sequence[Path], x: str, y: str, by: list[str], *, series: bool) -> SeriesFits:
    if source[0].is_file():
        table = read_table(
            source[0], list(dict.fromkeys([x, y])), [n for n in by if n not in (x, y)]
        )
        left_out = int(table[[x, y]].isna().any(axis=1).sum())
        if left_out:
            print(f"wattlaw: {source[0]}: {left_out} of {len(table)} rows have no {x} or no {y} "
                  "and are left out", file=sys.stderr)  # fmt: skip
        return fit_groups(table, x, y, by)
    table = run_metrics(*read_stores(source))
    if len(table) and (table["launcher"] == "simulated").all():
        print("wattlaw: all runs are simulated: nothing was measured", file=sys.stderr)
    if series and y in table.columns:
        return fit_series(scaling_series(table), y)
    return fit_groups(table, x, y, [*by, *([ENERGY_IS] if y == ENERGY else [])])


def report(
    stores: Sequence[Path],
    output: Path,
    figures: Path | None,
    *,
    template: str | None = None,
    kinds: str = "png,svg",
    target: float | None = None,
    pue: float | None = None,
    grid: str | None = None,
    price: str | None = None,
    price_per_gpu_hour: str | None = None,
) -> int:
    """Write the page and, if asked, the figures."""
    from wattlaw.analysis.claims import check_claims
    from wattlaw.cli.footprints import footprint_of
    from wattlaw.cli.quantities import finite
    from wattlaw.report.accounting_window import read_accounting_windows
    from wattlaw.report.layouts import layout
    from wattlaw.report.page import write_report
    from wattlaw.report.pictures import charts, figure_kinds, write_figures
    from wattlaw.store.statistics import read_telemetry

    chosen, asked = layout(template), figure_kinds(kinds)
    footprint = footprint_of(pue, grid, price, price_per_gpu_hour)
    runs, epochs = read_stores(stores)
    used, joint = read_telemetry(stores, runs)
    findings = analyse(
        runs, epochs, statistics=used, joint=joint,
        accounting_windows=read_accounting_windows(stores), footprint=footprint,
        reference=chosen.reference, target=finite("--target", target),
    )  # fmt: skip
    for_page, for_files = tee(charts(findings, chosen.study))
    write_report(findings, check_claims(findings), output, template, made=for_page)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        written = write_figures(for_files, figures, asked)
        print(f"{figures}: {len(written)} files")
    return 0


def export(store: Path, table: str, output: Path, *, raw: bool = False) -> int:
    """Write a table to a file; its ending says which kind."""
    if table not in TABLES:
        raise BadInput(f"export: given {table!r}; allowed: {', '.join(TABLES)}")
    kind = output.suffix.lower()
    if kind not in KINDS:
        raise BadInput(f"{output}: unknown ending {kind!r}; allowed: {', '.join(KINDS)}")
    found = Store.existing(store)
    if table == "fits":
        fits = fit_series(scaling_series(run_metrics(*read_stores([store]))))
        rows = pa.Table.from_pandas(fits.to_frame(), preserve_index=False)
    elif table == "statistics":
        from wattlaw.store.statistics import statistics

        rows = pa.Table.from_pandas(statistics(found), preserve_index=False)
    elif table in ("metrics", "settings"):
        metrics = run_metrics(*read_stores([store]))
        frame = metrics if table == "metrics" else aggregate(metrics)
        rows = pa.Table.from_pandas(frame, preserve_index=False)
    else:
        rows = found.arrow(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_table(output, rows, raw=raw)
    print(f"{output}: {len(rows)} rows of {table}")
    return 0


def _show(fits: SeriesFits) -> None:
    table = Table(title="t = alpha * N^-beta", title_justify="left", box=SIMPLE_HEAD)
    for name in ("series", "alpha", "beta", "SE", "95 % interval", "R²", "p", "n", "N",
                 "selected", "breakpoint"):  # fmt: skip
        left = name in {"series", "selected", "breakpoint"}
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for row in fits.rows:
        if row.law is not None:
            table.add_row(*_cells(row, row.law))
    if any(law.trusted.interval == "repeats" for _, law in fits.laws):
        table.caption = "* from the counts' means: repeats of a count share deviations"
    console = Console()
    if not console.is_terminal:  # a file or a pager has room
        console = Console(width=_WIDE)
    console.print(table)


def _cells(row: SeriesFit, law: PowerLaw) -> list[str]:
    """Return a series in the table's columns: the intervals that a report should quote."""
    quoted = law.trusted
    low, high = quoted.beta_ci
    return [
        group_label(row.group) or "all rows",
        f"{law.alpha:.4g}",
        f"{law.beta:.3f}",
        f"{quoted.beta_se:.3f}",
        f"{low:.3f} to {high:.3f}{'*' if quoted.interval == 'repeats' else ''}",
        "-" if law.r2 is None else f"{law.r2:.4f}",
        "-" if law.p_value is None else f"{law.p_value:.2g}",
        str(law.n),
        f"{law.x_min:g}-{law.x_max:g}",
        row.selection.best.law if row.selection else "-",
        _breakpoint_cell(row),
    ]


def _breakpoint_cell(row: SeriesFit) -> str:
    if row.breakpoint is None:
        return "cannot tell" if row.breakpoint_p is None else "none seen"
    found = row.breakpoint
    return f"at {found.at:g}: {found.beta_before:.2f}, then {found.beta_after:.2f}"
