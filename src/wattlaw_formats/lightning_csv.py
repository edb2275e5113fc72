"""``metrics.csv`` of Lightning's ``CSVLogger``.

Lightning logs no times of its own accord. With its callback ``ThroughputMonitor`` the file has
``train/time``, the seconds of training so far, and ``train/batches``; these give steps and their
time. Evaluations are the rows with ``val_`` or ``test_`` columns.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, count, headers_in, number
from wattlaw.importing.timeseries import run_of_training

_TRAIN = re.compile(r"train[/|](time|batches|samples|device[/|]samples_per_sec)")
_EVALUATION = re.compile(r"(?:val|valid|validation|test)[_/|].*")


class MetricsImporter:
    name = "lightning"
    description = "metrics.csv of Lightning's CSVLogger, with ThroughputMonitor"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return any(
            {"epoch", "step"} <= names and not {"start", "end"} <= names
            for names in headers_in(head)
        )

    def read(self, source: Source, options: Options) -> Imported:
        path, account = source.path, source.account
        train: list[list[dict[str, float]]] = []
        evaluations: list[dict[str, float]] = []
        for line, row in source.rows(("epoch", "step")):
            known = {
                name: value for name, cell in row.items() if (value := number(cell)) is not None
            }
            own = {match[1]: known[name] for name in known if (match := _TRAIN.fullmatch(name))}
            is_timed = "time" in own and "step" in known
            is_evaluation = any(_EVALUATION.fullmatch(name) for name in known)
            if is_timed:
                point = {**own, "step": known["step"], "line": line}
                last = train[-1][-1] if train else None
                # The time starts again with each call of fit.
                if last and last["time"] < own["time"] and last["step"] <= point["step"]:
                    train[-1].append(point)
                else:
                    train.append([point])
            if is_evaluation:
                evaluations.append(known)
            if is_timed or is_evaluation:
                account.read(line)
            else:
                account.leave_out("without a time of training or a validation", line)
        blocks = []
        for rows in train:
            block = _block(rows, options.constants.get("gpus"))
            if block is not None:
                blocks.append(block)
            else:
                why = "a call of fit with fewer than two steps with a time"
                account.leave_out(why, *(int(row["line"]) for row in rows))
        if not blocks:
            raise BadInput(
                f"{path}: no times of training; log them with Lightning's ThroughputMonitor, or "
                "import the file with --from table --map"
            )
        names = {name for row in evaluations if (name := _metric_name(row))}
        rows = [*blocks, *map(_evaluation, evaluations)]
        run = run_of_training(path, options, rows, names)
        steps, train_s = (sum(block[name] for block in blocks) for name in ("steps", "duration_s"))
        several = f"{len(blocks)} calls of fit, " if len(blocks) > 1 else ""
        text = f"Lightning metrics: {several}{steps:,} steps in {train_s:.4g} s"
        return Imported(f"{text}, {plural(len(evaluations), 'evaluation')}", [run])


def _block(rows: list[dict[str, float]], gpus: int | None) -> dict[str, Any] | None:
    """Return the steps from the first row with a time to the last one; None of fewer than two."""
    first, last = rows[0], rows[-1]
    steps = count(last["step"] - first["step"], 1, 10**7)
    if steps is None or not last["time"] > first["time"]:
        return None
    samples = None
    if "samples" in first and "samples" in last and gpus:
        samples = count(last["samples"] - first["samples"], 1, 2**53)
    return {
        "phase": "steps",
        "from_step": count(first["step"]),
        "duration_s": last["time"] - first["time"],
        "steps": steps,
        # ThroughputMonitor counts the samples of one process.
        "samples": samples * gpus if samples is not None and gpus else None,
    }


def _metric_name(row: Mapping[str, float]) -> str | None:
    names = [name for name in row if _EVALUATION.fullmatch(name) and "loss" not in name]
    names = [name for name in names if not re.search(r"time|batches|_per_sec|samples", name)]
    return re.split(r"[_/|]", names[0], maxsplit=1)[1][:200] if names else None


def _evaluation(row: Mapping[str, float]) -> dict[str, Any]:
    metric = _metric_name(row)
    pairs = {re.split(r"[_/|]", name, maxsplit=1)[-1][:200]: value
             for name, value in row.items() if _EVALUATION.fullmatch(name)}  # fmt: skip
    return {
        "phase": "evaluate",
        "epoch": count(row.get("epoch"), most=10**7),
        "duration_s": None,
        "loss": next((value for name, value in pairs.items() if "loss" in name), None),
        "metric": pairs.get(metric) if metric else None,
    }


IMPORTER = MetricsImporter()
