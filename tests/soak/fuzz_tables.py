"""Generators of tables for ``import`` and ``fit``: CSV, JSON lines and Parquet."""

import csv
import io
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

from soak import mutate
from soak.case import Case, Entry
from soak.templates import MAP, TABLE

_BOMBS = 400
_FIELDS = MAP.split(",")
_FIT = ("fit", "{inputs}/table.EXT", "--x", "gpus", "--y", "time", "--by", "network")


def tables(dice: random.Random, _: Path) -> Case:
    if dice.random() < 1 / _BOMBS:
        entry, kind = Entry("template", text="bomb.parquet"), "parquet"
    else:
        kind = dice.choice(["csv", "csv", "jsonl", "parquet"])
        maker = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}[kind]
        entry = Entry(data=maker(dice))
    name = f"table.{kind}"
    if dice.random() < 0.15 and kind != "jsonl":
        argv = tuple(word.replace("EXT", kind) for word in _FIT)
        argv = argv[: dice.choice([2, 6, 8])] + (("--json",) if dice.random() < 0.3 else ())
        return Case(f"{kind} tables for fit", argv, {name: entry})
    argv = ("import", f"{{inputs}}/{name}", "--map", _map(dice), "--store", "{work}/store")
    argv += (
        ("--hardware", mutate.token(dice)[:300].replace("\0", "")) if dice.random() < 0.1 else ()
    )
    return Case(f"{kind} tables for import", argv, {name: entry}, outputs=("store",))


def _map(dice: random.Random) -> str:
    if dice.random() < 0.8:
        return MAP
    fields = list(_FIELDS)
    for _ in range(dice.choice([1, 2, 4])):
        how = dice.random()
        if how < 0.4:
            fields.pop(dice.randrange(len(fields)))
        elif how < 0.7:
            key = dice.choice(
                [
                    "gpus",
                    "power_limit_w",
                    "samples",
                    "repeat",
                    "metric",
                    "options.x",
                    "energy_source",
                ]
            )
            fields.append(f"{key}=@{mutate.token(dice)[:200]}")
        else:
            place = dice.randrange(len(fields))
            fields[place] = mutate.text(dice, fields[place])
        if not fields:
            fields = ["gpus=gpus"]
    return ",".join(fields).replace("\0", "")


def _rows(dice: random.Random) -> list[list[Any]]:
    rows: list[list[Any]] = [list(row) for row in csv.reader(io.StringIO(TABLE))]
    for _ in range(dice.choice([0, 1, 1, 2, 6])):
        row = dice.randrange(1, len(rows)) if dice.random() < 0.9 else 0
        how, place = dice.random(), dice.randrange(len(rows[row]) or 1)
        if how < 0.7 and rows[row]:
            rows[row][min(place, len(rows[row]) - 1)] = dice.choice(
                [mutate.token(dice), str(dice.choice(mutate.NUMBERS))]
            )
        elif how < 0.8:
            rows[row] = rows[row][:place]
        elif how < 0.9:
            rows[row] += [mutate.token(dice)]
        else:
            rows += [list(rows[row])] * dice.choice([1, 2, 100])
    return rows


def _csv(dice: random.Random) -> bytes:
    if dice.random() < 0.2:
        return mutate.raw(dice, TABLE.encode())
    if dice.random() < 0.2:
        return mutate.text(dice, TABLE, dice.choice([1, 2, 5])).encode("utf-8", "surrogatepass")
    text = io.StringIO()
    csv.writer(
        text, lineterminator=dice.choice(["\n", "\r\n"]), quoting=dice.choice([0, 0, 1])
    ).writerows(_rows(dice))
    encoding = dice.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1"])
    errors = "surrogatepass" if encoding.startswith("utf") else "replace"
    return text.getvalue().encode(encoding, errors)


def _jsonl(dice: random.Random) -> bytes:
    header, *rows = csv.reader(io.StringIO(TABLE))
    found = []
    for row in rows:
        told = {name: _number(one) for name, one in zip(header, row, strict=True)}
        found.append(mutate.data(dice, told) if dice.random() < 0.3 else told)
    text = "\n".join(json.dumps(row, ensure_ascii=dice.random() < 0.5) for row in found) + "\n"
    if dice.random() < 0.3:
        text = mutate.text(dice, text, dice.choice([1, 3]))
    data = text.encode("utf-8", "surrogatepass")
    return mutate.raw(dice, data) if dice.random() < 0.15 else data


def _number(text: str) -> Any:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _parquet(dice: random.Random) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    header, *rows = csv.reader(io.StringIO(TABLE))
    columns: dict[str, Any] = {}
    for place, name in enumerate(header):
        values = [_number(row[place]) for row in rows]
        columns[name] = pa.array(values)
    for _ in range(dice.choice([0, 1, 1, 2])):
        name = dice.choice(header) if dice.random() < 0.9 else mutate.token(dice)[:100]
        try:
            columns[name] = _odd_column(dice, pa, len(rows))
        except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError):
            continue
    buffer = io.BytesIO()
    try:
        table = pa.table(columns)
        if dice.random() < 0.1:
            table = table.slice(0, dice.choice([0, 1]))
        pq.write_table(table, buffer, compression=dice.choice(["none", "snappy", "zstd"]))
    except (pa.ArrowException, OverflowError, ValueError, UnicodeError):
        return b"PAR1"
    data = buffer.getvalue()
    return mutate.raw(dice, data) if dice.random() < 0.35 else data


def _odd_column(dice: random.Random, pa: Any, rows: int) -> Any:
    """Return a column of a type or of values that a reader may not expect."""
    far = dice.choice([2**62, -(2**62), 0, 253402300800000000])
    kinds: list[Any] = [
        (pa.float16(), 1.5), (pa.list_(pa.float64()), [1.0, 2.0]), (pa.list_(pa.list_(pa.int8())),
        [[1]]),
        (pa.struct([("a", pa.int64())]), {"a": 1}), (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (pa.decimal256(60, 2), Decimal("9" * 50)), (pa.decimal128(20, 0), Decimal(3)),
        (pa.timestamp("us"), far), (pa.timestamp("s", "UTC"), dice.choice([far, 253402300800])),
        (pa.date64(), 86_400_000 * 10**8), (pa.time64("ns"), 1), (pa.duration("ns"), far),
        (pa.binary(), b"\xff\x00"),
        (pa.large_string(), "x" * dice.choice([1, 300, 100_000])), (pa.null(), None), (pa.bool_(),
        True),
        (pa.uint64(), 2**64 - 1), (pa.int8(), -128), (pa.float64(), dice.choice([float("nan"),
        float("inf"), -1e308, 0.0])),
        (pa.string(), mutate.token(dice)), (pa.month_day_nano_interval(), (1, 2, 3)),
    ]  # fmt: skip
    kind, one = dice.choice(kinds)
    values = [one if dice.random() < 0.8 else None for _ in range(rows)]
    column = pa.array(values, kind)
    return (
        column.dictionary_encode() if dice.random() < 0.1 and pa.types.is_string(kind) else column
    )
