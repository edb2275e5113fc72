"""``wattlaw compare``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.analysis.advise.comparison import EXCEEDED
from wattlaw.analysis.advise.known_throughput import Placements
from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import option
from wattlaw.common.errors import BadInput
from wattlaw.report.topics import comparisons

#: The exit code where a limit of ``--fail-if`` is exceeded.
LIMIT_EXCEEDED = 4


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Results folder to compare with.")],
    b: Annotated[Path | None, typer.Argument(metavar="B", help="Results folder.")] = None,
    by: Annotated[
        str | None, option("COL", "git_commit: compare the last two commits of A instead.")
    ] = None,
    reference: Annotated[
        Path | None,
        option("FILE", "Table of known measurements: is the throughput of A normal?"),
    ] = None,
    mapping: Annotated[
        str | None,
        option("FIELD=COLUMN,...", "Column of each field of that table, as of import.", "--map"),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        option("LIMIT", "Exit with 4 beyond a limit: 'energy > +5%'. Can be repeated."),
    ] = None,
    energy_scope: opts.EnergyScopeOption = None,
    as_json: opts.JsonOption = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse damaged files; fail at limits without an interval."),
    ] = False,
) -> int:
    """Compare machines, code versions, before and after."""
    if reference is not None:
        if b is not None or by or fail_if or energy_scope:
            raise BadInput("--reference: allowed with one store, --map, --json and --strict only")
        placements = results.open(a, strict=strict).compare(reference=reference, map=mapping)
        return _show(placements, as_json=as_json)
    if mapping is not None:
        raise BadInput("--map: given without --reference; allowed: with it")
    other = None if b is None else results.open(b, strict=strict)
    comparison = results.open(a, strict=strict).compare(other, by=by, energy_scope=energy_scope)
    checks = [comparison.check(limit) for limit in fail_if or ()]
    if as_json:
        shown = comparison.to_dict() | {"checks": [check.to_dict() for check in checks]}
        print(json.dumps(shown, allow_nan=False))
    else:
        console = Console()
        console.print(str(comparison))
        console.show(comparisons.comparison_table(comparison))
        for check in checks:
            console.print(str(check))
    failed = [
        check for check in checks if check.verdict == EXCEEDED or (strict and not check.is_judged)
    ]
    return LIMIT_EXCEEDED if failed else 0


def _show(placements: Placements, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(placements.to_dict(), allow_nan=False))
        return 0
    console = Console()
    for item in placements:
        console.print(comparisons.headline(item), style="bold")
        console.show(comparisons.placement_table(item))
        console.print("\n".join(comparisons.placement_sentences(item)))
    return 0
