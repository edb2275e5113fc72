"""``trainer_state.json`` of Hugging Face's Trainer, as ``trainer.save_state()`` writes it.

Each training ends with a record of its ``train_runtime`` at its ``step``. The time includes the
evaluations during training, which are subtracted. Its rates are those of the steps that ran, or up
to version 4 of Transformers those of all planned steps, also where a training stopped early or went
on from a checkpoint. Such a file does not say at which step a training went on, but its mean loss
does: it is the sum of the losses since then, divided by all steps.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, count, number, positive
from wattlaw.importing.runs import RunMaker, workload_of
from wattlaw.importing.timeseries import measure_of
from wattlaw.store.record import Facts

_SPEEDS = (
    "_runtime", "_samples_per_second", "_steps_per_second", "_loss", "_model_preparation_time",
)  # fmt: skip
#: With several data sets, their names are between: ``eval_mnli_runtime``.
_RUNTIME = re.compile(r"eval_(?:.+_)?runtime")
_LOSS = r"eval_(?:.+_)?loss"
#: The Trainer rounds rates to three digits after the point.
_ROUNDING, _MAX_ERROR = 0.0005, 0.01
#: Logged losses are rounded to four digits.
_LOSS_ERROR, _LOSS_ROUNDING = 1.05, 1e-4
_MAX_STEP = 10**9


@dataclass(frozen=True)
class Entry:
    row: int
    values: Mapping[str, Any]
    step: int | None

    @property
    def evaluation_s(self) -> float | None:
        known = (positive(value) for name, value in self.values.items() if _RUNTIME.fullmatch(name))
        return next((value for value in known if value is not None), None)


class TrainerStateImporter:
    name = "huggingface"
    description = "trainer_state.json of Hugging Face's Trainer"

    def detect(self, path: Path, head: bytes) -> bool:
        is_json = head.lstrip()[:1] == b"{"
        return is_json and (path.name == "trainer_state.json" or b'"log_history"' in head)

    def read(self, source: Source, options: Options) -> Imported:
        path, account, state = source.path, source.account, source.json()
        log = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(log, list):
            raise BadInput(f"{path}: no log_history; not a trainer_state.json")
        entries = list[Entry]()
        for row, values in source.items(log, "record"):
            if isinstance(values, dict):
                entries.append(Entry(row, values, count(values.get("step"), most=_MAX_STEP)))
            else:
                account.leave_out("not a mapping of names and values", row)
        ends = [i for i, each in enumerate(entries) if positive(each.values.get("train_runtime"))]
        if not ends:
            raise BadInput(
                f"{path}: no train_runtime; it is a checkpoint, or training did not end: call "
                "trainer.save_state() at the end of training"
            )
        blocks, notes = _blocks(source, entries, ends, options, state.get("global_step"))
        if not blocks:
            raise BadInput(f"{path}: {account.left_out[0].reason}")
        evaluations = [each for each in entries if each.evaluation_s is not None]
        rows = [*blocks, *(_evaluation(each) for each in evaluations)]
        names = {name for each in evaluations if (name := _metric_name(each.values))}
        run = RunMaker(path, options).run(
            {"workload": workload_of(path)}, rows, measure_of(rows),
            facts=Facts(metric=min(names, default=None)), notes=notes,
        )  # fmt: skip
        steps, train_s = (sum(block[name] for block in blocks) for name in ("steps", "duration_s"))
        several = f"{len(blocks)} trainings, " if len(blocks) > 1 else ""
        text = f"Hugging Face Trainer: {several}{steps:,} steps in {train_s:.4g} s"
        text += f", {plural(len(evaluations), 'evaluation')}"
        return Imported(text, [run], notes=notes)


def _blocks(
    source: Source, entries: Sequence[Entry], ends: Sequence[int], options: Options, steps: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a block of steps for each training, whose records end at ``ends``, and notes."""
    account, blocks, notes = source.account, list[dict[str, Any]](), list[str]()
    begin, done = 0, 0
    for place in ends:
        end = entries[place]
        if end.step is None and place == ends[-1]:
            end = replace(end, step=count(steps, most=_MAX_STEP))
        own, begin = entries[begin:place], place + 1
        block = _block(end, own, done, options, notes)
        if isinstance(block, str):
            account.leave_out(block, *(each.row for each in own), end.row)
        else:
            account.read(end.row)
            blocks.append(block)
        for each in own:
            if each.evaluation_s is not None or number(each.values.get("loss")) is not None:
                account.read(each.row)
            else:
                account.leave_out("a record without a loss or an evaluation", each.row)
        done = done if end.step is None else end.step
    for each in entries[begin:]:
        if each.evaluation_s is not None:
            account.read(each.row)
        else:
            account.leave_out("after the last train_runtime: the time is unknown", each.row)
    return blocks, notes


def _block(
    end: Entry, entries: Sequence[Entry], begun: int, options: Options, notes: list[str]
) -> dict[str, Any] | str:
    runtime_s = float(end.values["train_runtime"])
    if end.step is None:
        return "a training without a step number"
    steps = end.step - begun
    if steps <= 0:
        return "a training without steps since the previous one"
    steps_per_s, samples_per_s = (
        positive(end.values.get(f"train_{name}_per_second")) for name in ("steps", "samples")
    )
    rated = None if steps_per_s is None else steps_per_s * runtime_s
    error = max(0.5, _ROUNDING * runtime_s)
    if rated is not None and rated < steps - error:  # the rate is of the steps that ran
        if error > _MAX_ERROR * rated:
            return "a training that continued from a checkpoint: its steps are uncertain"
        notes.append(f"training continued from a checkpoint at step {end.step - round(rated):,}")
        steps = round(rated)
    elif _is_resumed(end, entries, begun):
        return (
            "a training that continued from a checkpoint: its steps since then are unknown; import "
            "its TensorBoard events instead"
        )
    is_rated = rated is not None and abs(rated - steps) <= error
    if rated is not None and not is_rated:
        notes.append(
            f"{steps:,} of {rated:,.0f} planned steps ran; the rates in the file are of the plan"
        )
    # The evaluation after a training has the step of its end.
    during_s = sum(
        each.evaluation_s or 0.0
        for each in entries
        if end.step == steps or each.step is None or each.step > end.step - steps
    )
    if during_s:
        notes.append(f"{during_s:.4g} s of evaluations are subtracted from train_runtime")
    if not runtime_s > during_s:
        return "a training whose evaluations take all of its time"
    samples: float = steps * options.constants.get("global_batch", 0)
    if samples_per_s is not None and rated is not None and steps_per_s is not None:
        if is_rated and _MAX_ERROR * samples_per_s >= _ROUNDING:
            samples = samples_per_s * runtime_s
        elif not is_rated and _MAX_ERROR * min(samples_per_s, steps_per_s) >= _ROUNDING:
            samples = steps * samples_per_s / steps_per_s
    return {
        "phase": "steps",
        "from_step": end.step - steps,
        "duration_s": runtime_s - during_s,
        "steps": steps,
        "samples": round(samples) if 0 < samples < 2**62 else None,
        "loss": number(end.values.get("train_loss")),
    }


def _is_resumed(end: Entry, entries: Sequence[Entry], begun: int) -> bool:
    """Say whether the losses of all steps are more than those of the time of the training."""
    mean, total, before = number(end.values.get("train_loss")), 0.0, begun
    for each in entries:
        loss = number(each.values.get("loss"))
        if loss is not None and each.step is not None and each.step > before:
            total += loss * (each.step - before)
            before = each.step
    if mean is None or end.step is None or not mean > 0:
        return False
    trained = mean * end.step
    return total > _LOSS_ERROR * trained + _LOSS_ROUNDING * end.step


def _metric_name(entry: Mapping[str, Any]) -> str | None:
    names = (name for name in entry if isinstance(name, str) and name.startswith("eval_"))
    known = (name for name in names if not name.endswith(_SPEEDS))
    return next((name[5:205] for name in known if number(entry[name]) is not None), None)


def _evaluation(each: Entry) -> dict[str, Any]:
    entry = each.values
    name, epoch = _metric_name(entry), number(entry.get("epoch"))
    results = {key: value for key, value in entry.items() if number(value) is not None}
    return {
        "phase": "evaluate",
        # 1.0 is after the first epoch, whose number is 0.
        "epoch": None if epoch is None or not 0 <= epoch < 10**7 else max(0, math.ceil(epoch) - 1),
        "duration_s": each.evaluation_s,
        "loss": next((number(v) for k, v in results.items() if re.fullmatch(_LOSS, k)), None),
        "metric": None if name is None else number(entry.get(f"eval_{name}")),
        "metrics": json.dumps(results)[:10_000],
    }


IMPORTER = TrainerStateImporter()
