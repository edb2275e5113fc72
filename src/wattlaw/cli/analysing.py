"""``fit``, ``report`` and ``export``."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattlaw.analysis.findings import find
from wattlaw.analysis.metrics import run_metrics
from wattlaw.analysis.power_law import Fits, fit_groups
from wattlaw.analysis.series import ENERGY, fit_series, group_label, scaling_series
from wattlaw.errors import BadInput, Refused
from wattlaw.store.store import Store
from wattlaw.store.tables import KINDS, read_stores, read_table, write_table

TABLES = ("runs", "epochs", "telemetry", "fits")
ENERGY_IS = "energy_is"


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
        print(f"wattlaw: no law for {group_label(group) or 'the table'}: {reason}", file=sys.stderr)
    if as_json:
        print(json.dumps(fits.as_json(), allow_nan=False))
    elif fits.laws:
        _show(fits)
    if fits.laws:
        return 0
    if fits.refusals:
        return Refused.exit_code
    raise Refused(f"{source[0]}: no rows to fit (no runs done, or no series of several {x})")


def _fits(source: Sequence[Path], x: str, y: str, by: list[str], *, series: bool) -> Fits:
    if source[0].is_file():
        table = read_table(source[0])
        left_out = int(table[[x, y]].isna().any(axis=1).sum()) if {x, y} <= {*table.columns} else 0
        if left_out:
            print(f"wattlaw: {source[0]}: {left_out} of {len(table)} rows have no {x} or no {y} "
                  "and are left out", file=sys.stderr)  # fmt: skip
        return fit_groups(table, x, y, by)
    table = run_metrics(*read_stores(source))
    if series and y in table.columns:
        return fit_series(scaling_series(table), y)
    return fit_groups(table, x, y, [*by, *([ENERGY_IS] if y == ENERGY else [])])


def report(stores: Sequence[Path], output: Path, figures: Path | None) -> int:
    """Write the page and, if asked, the figures."""
    from wattlaw.report.page import write_figures, write_report

    findings = find(*read_stores(stores))
    write_report(findings, output)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        written = write_figures(findings, figures)
        print(f"{figures}: {len(written)} files")
    return 0


def export(store: Path, table: str, output: Path) -> int:
    """Write a table to a file; its ending says which kind."""
    if table not in TABLES:
        raise BadInput(f"export: given {table!r}; allowed: {', '.join(TABLES)}")
    kind = output.suffix.lower()
    if kind not in KINDS:
        raise BadInput(f"{output}: unknown ending {kind!r}; allowed: {', '.join(KINDS)}")
    found = Store.existing(store)
    if table == "fits":
        fits = fit_series(scaling_series(run_metrics(*read_stores([store]))))
        rows = pa.Table.from_pandas(pd.json_normalize(fits.as_json()), preserve_index=False)
    else:
        rows = found.arrow(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_table(output, rows)
    print(f"{output}: {len(rows)} rows of {table}")
    return 0


def _show(fits: Fits) -> None:
    table = Table(title="t = alpha * N^-beta", title_justify="left")
    for name in ("series", "alpha", "beta", "SE", "95 % interval", "R²", "p", "n", "N"):
        table.add_column(name, justify="left" if name == "series" else "right", overflow="fold")
    for group, law in fits.laws:
        low, high = law.beta_ci
        table.add_row(
            escape(group_label(group)) or "all rows",
            f"{law.alpha:.4g}",
            f"{law.beta:.3f}",
            f"{law.beta_se:.3f}",
            f"{low:.3f} to {high:.3f}",
            "-" if law.r2 is None else f"{law.r2:.4f}",
            "-" if law.p_value is None else f"{law.p_value:.2g}",
            str(law.n),
            f"{law.x_min:g}-{law.x_max:g}",
        )
    Console().print(table)
