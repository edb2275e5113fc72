"""``wattlaw next``."""

import json
import sys
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import studies
from wattlaw.api.store_tables import stored_decision
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import option
from wattlaw.common import formatting as fmt
from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names
from wattlaw.report import tables
from wattlaw.report.topics.decision_course import decision_text
from wattlaw.report.topics.prediction import label


def next_measurements(
    store: opts.StoreArgument,
    study: Annotated[
        Path | None,
        typer.Argument(metavar="STUDY.yaml", help="Study file. Default: the store's copy."),
    ] = None,
    count: Annotated[int, option("N", "The most measurements to show.", min=1, max=1000)] = 10,
    launch: opts.LaunchOption = None,
    table: opts.TableOption = None,
    as_json: opts.JsonOption = False,
) -> int:
    """Show the measurements that would help a decision most."""
    with suppress(BadInput):
        if study is None and launch is None and (decided := stored_decision(store)):  # as it ran
            launch = {"simulated": "simulated", "replayed": "replay"}.get(decided.origin)
    loaded = studies.load_study(study or _copy_in(store), launch=launch, table=table)
    decision, measurements = loaded.next_measurements(store, count)
    if not (store / "runs").exists():
        print(f"{store} is not a store yet; shown are the first runs", file=sys.stderr)
    if as_json:
        shown = {name: getattr(decision, name) for name in ("next_step", "stopped_because")}
        shown |= {"measurements": [item.to_dict() for item in measurements]}
        print(json.dumps(shown, allow_nan=False))
        return 0
    console = Console()
    console.print(decision_text(decision), soft_wrap=True)
    emulates = any(row.emulated_gpus for row in measurements)
    columns = [
        tables.text("setting", lambda row: label(row.setting, decision.worker)),
        *([tables.number("emulates", attrgetter("emulated_gpus"))] if emulates else []),
        tables.number(f"{decision.worker}-hours", attrgetter("gpu_hours")),
        tables.Column("regret now", lambda row: fmt.percent(row.regret_now, 2)),
        tables.Column("regret after", lambda row: fmt.percent(row.regret_after, 2)),
    ]
    console.show(tables.build("next", "Next measurements", columns, measurements))
    for warning in decision.warnings:
        console.print(f"Warning: {warning}")
    return 0


def _copy_in(store: Path) -> Path:
    """Return the study file that ``wattlaw run`` has copied into the store."""
    found = sorted((store / "studies").glob("*.yaml"))
    if len(found) != 1:
        kept = f"has several studies: {join_names([*map(str, found)])}" if found else "has no study"
        how = "" if found else " ('wattlaw init -- COMMAND' writes one), or run it first"
        text = f"name one: wattlaw next {store} STUDY.yaml{how}"
        text += "" if found else f": wattlaw run STUDY.yaml --store {store}"
        raise BadInput(f"{store}: {kept}; {text}")
    return found[0]
