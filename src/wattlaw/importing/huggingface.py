"""``trainer_state.json`` of Hugging Face's Trainer, as ``trainer.save_state()`` writes it.

``train_runtime`` includes the evaluations during training, which are subtracted.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, count, number, positive
from wattlaw.importing.timeseries import run_of_training

_SPEEDS = (
    "_runtime", "_samples_per_second", "_steps_per_second", "_loss", "_model_preparation_time",
)  # fmt: skip


class TrainerStateImporter:
    """The training and the evaluations of one Trainer."""

    name = "huggingface"
    description = "trainer_state.json of Hugging Face's Trainer"

    def detect(self, path: Path, head: bytes) -> bool:
        """Say whether the file has a log of steps."""
        is_json = head.lstrip()[:1] == b"{"
        return is_json and (path.name == "trainer_state.json" or b'"log_history"' in head)

    def read(self, source: Source, options: Options) -> Imported:
        """Return the run."""
        path, state = source.path, source.json()
        log = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(log, list):
            raise BadInput(f"{path}: no log_history; not a trainer_state.json")
        log = [entry for _, entry in source.items(log, "record") if isinstance(entry, dict)]
        at = next((i for i, entry in enumerate(log) if positive(entry.get("train_runtime"))), None)
        if at is None:
            raise BadInput(
                f"{path}: no train_runtime; call trainer.save_state() at the end of training"
            )
        total = log[at]
        evaluations = [entry for entry in log if positive(entry.get("eval_runtime"))]
        during_s = sum(float(e["eval_runtime"]) for e in log[:at] if e in evaluations)
        train_s = float(total["train_runtime"]) - during_s
        steps = count(state.get("global_step"), 1, 10**7)
        if train_s <= 0 or steps is None:
            raise BadInput(f"{path}: no training time, or no global_step")
        rate = positive(total.get("train_samples_per_second"))
        samples = None if rate is None else round(rate * float(total["train_runtime"]))
        window = {
            "phase": "steps",
            "duration_s": train_s,
            "steps": steps,
            "samples": samples if samples is not None and 0 < samples < 2**62 else None,
            "loss": number(total.get("train_loss")),
        }
        windows = [window, *(_evaluation(entry) for entry in evaluations)]
        names = {name for entry in evaluations if (name := _metric_name(entry))}
        note = f"{during_s:.4g} s of evaluations are subtracted from train_runtime"
        run = run_of_training(path, options, windows, names, [note] if during_s else [])
        text = f"Hugging Face Trainer: {steps:,} steps in {train_s:.4g} s"
        return Imported(f"{text}, {len(evaluations)} evaluations", [run])


def _metric_name(entry: Mapping[str, Any]) -> str | None:
    """Return the first result of an evaluation that is not its loss or its speed."""
    names = (name for name in entry if isinstance(name, str) and name.startswith("eval_"))
    known = (name for name in names if not name.endswith(_SPEEDS))
    return next((name[5:205] for name in known if number(entry[name]) is not None), None)


def _evaluation(entry: Mapping[str, Any]) -> dict[str, Any]:
    name, epoch = _metric_name(entry), number(entry.get("epoch"))
    results = {key: value for key, value in entry.items() if number(value) is not None}
    return {
        "phase": "evaluate",
        "epoch": int(epoch) if epoch is not None and 0 <= epoch < 10**7 else None,
        "duration_s": positive(entry.get("eval_runtime")),
        "loss": number(entry.get("eval_loss")),
        "metric": None if name is None else number(entry.get(f"eval_{name}")),
        "metrics": json.dumps(results)[:10_000],
    }


IMPORTER = TrainerStateImporter()
