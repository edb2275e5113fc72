"""Generators of files that a user names: studies, tables for ``import`` and ``fit``."""

import csv
import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from soak import mutate, templates
from soak.case import Case, Entry
from soak.templates import MAP, TABLE

#: More often, a huge grid costs the soak more than it finds.
_HUGE = 300
_FIT = ("--x", "gpus", "--y", "time", "--by", "network")
_studies = cache(templates.studies)


def studies(dice: random.Random, _: Path) -> Case:
    text = dice.choice(_studies())
    kind, times = dice.random(), dice.choice([1, 1, 2, 5, 20])
    if kind < 1 / _HUGE:
        counts = ",".join(map(str, range(1, dice.choice([400, 5000, 49_000]))))
        text = (
            f"name: huge\nrepeats: {dice.choice([1, 2**62])}\nworkloads: [{{name: digits-cnn}}]\n"
        )
        text += f"sweeps: [{{gpus: [{counts}], local_batch: [{counts}]}}]\n"
        data = text.encode()
    elif kind < 0.3:
        data = _encoded(mutate.text(dice, text, times))
    elif kind < 0.9:
        data = _encoded(_dumped(dice, mutate.data(dice, yaml.safe_load(text), times)))
    else:
        data = mutate.raw(dice, text.encode())
    argv = ("check", "{inputs}/study.yaml")
    if dice.random() < 0.25:
        argv = ("run", "{inputs}/study.yaml", "--dry-run", "--store", "{work}/store")
        argv += ("--launch", "simulated", "--hardware", "mit-v100") if dice.random() < 0.3 else ()
    return Case("study files", argv, {"study.yaml": Entry(data=data)})


def _dumped(dice: random.Random, tree: Any) -> str:
    try:
        flow, width = dice.choice([None, True, False]), dice.choice([80, 10**6])
        return yaml.safe_dump(tree, default_flow_style=flow, width=width, allow_unicode=True)
    except (yaml.YAMLError, RecursionError, ValueError, UnicodeError):
        return json.dumps(tree)


def _encoded(text: str, encoding: str = "utf-8") -> bytes:
    return text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


def tables(dice: random.Random, _: Path) -> Case:
    kind = dice.choice(["csv", "csv", "jsonl"])
    entry = Entry(data=(_csv if kind == "csv" else _jsonl)(dice))
    path = f"{{inputs}}/table.{kind}"
    if dice.random() < 0.15 and kind != "jsonl":
        argv: tuple[str, ...] = ("fit", path, *_FIT[: dice.choice([0, 4, 6])])
        return Case(f"{kind} tables for fit", argv, {f"table.{kind}": entry})
    fields = MAP if dice.random() < 0.8 else mutate.text(dice, MAP, dice.choice([1, 2, 4]))
    argv = ("import", path, "--map", fields.replace("\0", ""), "--store", "{work}/store")
    return Case(f"{kind} tables for import", argv, {f"table.{kind}": entry}, outputs=("store",))


def _csv(dice: random.Random) -> bytes:
    how = dice.random()
    if how < 0.2:
        return mutate.raw(dice, TABLE.encode())
    if how < 0.4:
        return _encoded(mutate.text(dice, TABLE, dice.choice([1, 2, 5])))
    rows: Any = mutate.data(dice, list(csv.reader(io.StringIO(TABLE))), dice.choice([0, 1, 2, 6]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=dice.choice(["\n", "\r\n"]))
    writer.writerows(row if isinstance(row, list) else [row] for row in rows)
    encodings = ["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1"]
    return _encoded(text.getvalue(), dice.choice(encodings))


def _rows() -> list[dict[str, Any]]:
    """Return the rows of the good table, with numbers as such."""

    def number(text: str) -> Any:
        return float(text) if text.replace(".", "").isdigit() else text or None

    return [{name: number(one) for name, one in row.items()}
            for row in csv.DictReader(io.StringIO(TABLE))]  # fmt: skip


def _jsonl(dice: random.Random) -> bytes:
    found = [mutate.data(dice, row) if dice.random() < 0.3 else row for row in _rows()]
    text = "".join(f"{json.dumps(row)}\n" for row in found)
    if dice.random() < 0.3:
        text = mutate.text(dice, text, dice.choice([1, 3]))
    return mutate.raw(dice, _encoded(text)) if dice.random() < 0.15 else _encoded(text)
