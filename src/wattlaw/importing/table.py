"""Any table: each row becomes one run; ``--map`` says which column each field takes.

What a table does not say is missing in the run, or noted where a run must have a value.
"""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source
from wattlaw.importing.runs import EPOCHS_MEASURE, NO_ENERGY, NOT_CHECKED, STEPS_MEASURE, RunMaker
from wattlaw.store.field_map import map_by_names, parse_map
from wattlaw.store.fields import ENERGIES, STEP_PARTS, TOKENS, InvalidCell, global_batch_of
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.measurements import Measurement, read_measurements
from wattlaw.store.record import Facts
from wattlaw.store.rows import read_rows
from wattlaw.study.model import Measure

MAX_WINDOWS = 2_000_000


class TableImporter:
    """One row of a table is one run. Rows of the same setting are numbered as its repeats, rejected
    ones included, unless the field ``repeat`` gives the number."""

    name = "table"
    description = "a .csv or .jsonl table, with --map"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: a table is the file with its suffix that no other format has."""
        return False

    def read(self, source: Source, options: Options) -> Imported:
        path, account = source.path, source.account
        names = {name: options.constants.get(name) for name in ("workload", "hardware")}
        by_name: tuple[str, ...] = ()
        if options.mapping is not None:
            fields = parse_map(options.mapping, names)
        else:
            columns = read_rows(path, None).columns
            try:
                fields = map_by_names(columns, names)
            except BadInput as error:
                raise BadInput(f"{path}: {error}; or --from FORMAT if it is no table") from None
            read = [f"{name}={column}" for name, column in fields.columns.items()]
            by_name = (f"columns by their names: {', '.join(read)}; other columns are not read",)
        table = read_measurements(path, fields)
        for line in table.header:
            account.header(line)
        for line, why in table.left_out:
            account.leave_out(why, line)
        is_by_steps = table.time_field == "step_time_s"
        measure = STEPS_MEASURE if is_by_steps else EPOCHS_MEASURE
        maker = RunMaker(path, options, repeats_are_numbered="repeat" in fields.targets)
        runs, windows = list[ImportedRun](), 0
        for row in table.rows:
            try:
                if row.setting is None or row.fault is not None:
                    raise InvalidCell(row.fault)
                run = _run(maker, row, measure, row.result.get(table.time_field, 0.0))
            except InvalidCell as error:
                if row.setting is not None:
                    with contextlib.suppress(InvalidCell):
                        maker.skip(row.setting, measure)
                account.reject(row.line, str(error))
                continue
            windows += len(run.windows)
            if windows > MAX_WINDOWS:
                raise BadInput(f"{path}: more than {MAX_WINDOWS:,} epochs in one table")
            runs.append(run)
            account.read(row.line)
        return Imported(f"table of {len(table.rows):,} rows", runs, notes=(*by_name, *table.notes))


def _run(maker: RunMaker, row: Measurement, measure: Measure, time_s: float) -> ImportedRun:
    setting, result, is_by_steps = row.setting or {}, row.result, measure is STEPS_MEASURE
    peak = result.get("peak_memory_bytes")
    tokens = result.get(TOKENS) or setting.get("model.sequence")
    facts = Facts(peak_memory_bytes=peak and round(peak), tokens_per_sample=tokens)
    if row.failure is not None:
        return maker.run(setting, (), measure, line=row.line, facts=facts, failure=row.failure)
    count = 1 if is_by_steps else setting.get("epochs", 1)
    train = {
        "phase": "steps" if is_by_steps else "train",
        "from_step": 0,
        "duration_s": time_s,
        "samples": global_batch_of(setting) if is_by_steps else result.get("samples"),
        "steps": 1 if is_by_steps else result.get("steps"),
        **{name: result.get(name) for name in STEP_PARTS},
        **{f"{name}_mean": result.get(name) for name in ("sm_util", "mem_util")},
        **_energy(result, time_s, setting["gpus"]),
    }
    windows = [{**train, "epoch": epoch} for epoch in range(count)]
    evaluate = {"duration_s": result.get("eval_time_s")}
    evaluate |= {name: result.get(name) for name in ("metric", "loss")}
    if any(value is not None for value in evaluate.values()):
        windows.append({"phase": "evaluate", "epoch": count - 1, "from_step": 0, **evaluate})
        facts = facts.model_copy(update={"metric": result.get("metric_name")})
    each = "the table has one mean over all epochs; each epoch gets this mean"
    notes = (each,) if count > 1 else ()
    return maker.run(setting, windows, measure, line=row.line, notes=notes, facts=facts)


def _energy(result: Mapping[str, Any], time_s: float, gpus: int) -> dict[str, Any]:
    energy_j = {name: result[name] for name in ENERGIES if name in result}
    if not energy_j:
        return NO_ENERGY
    source = result.get("energy_source", "integral")
    verdict = result.get("energy_verdict", "suspect")
    row = {
        **energy_j,
        "energy_source": source,
        "energy_verdict": verdict,
        "energy_reason": None if verdict == "ok" else NOT_CHECKED,
    }
    outer = next((kind for kind in ("node", "module") if f"{kind}_energy_j" in energy_j), None)
    if outer == "node":
        row |= {"node_energy_source": source, "node_energy_verdict": verdict}
        row |= NO_ENERGY if len(energy_j) == 1 else {}
    if outer:
        row["energy_scope"] = outer
    if "gpu_energy_j" in energy_j:
        row["gpu_power_mean_w"] = energy_j["gpu_energy_j"] / time_s / gpus
        if not all(0 < row[name] < math.inf for name in ("gpu_energy_j", "gpu_power_mean_w")):
            raise InvalidCell("energy and time give no finite power > 0")
    return row


IMPORTER = TableImporter()
