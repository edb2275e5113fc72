"""Tables in and out: of several stores at once, from a user's file, to a file of any kind."""

import csv
import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from wattlaw.errors import BadInput, one_line
from wattlaw.store.files import replacing, write_parquet
from wattlaw.store.rows import FORMULA
from wattlaw.store.schema import EPOCHS
from wattlaw.store.store import Store, read_sound

KINDS = (".csv", ".parquet", ".jsonl")


def read_stores(paths: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables ``runs`` and ``epochs`` of one or more stores."""
    stores = [Store.existing(path) for path in paths]
    runs = pd.concat([store.pandas("runs") for store in stores], ignore_index=True)
    windows = (read_sound(store.finished("epochs"), EPOCHS).to_pandas() for store in stores)
    epochs = pd.concat(windows, ignore_index=True)
    if runs["run_id"].duplicated().any():
        twice = runs.loc[runs["run_id"].duplicated(), "run_id"].iloc[0]
        raise BadInput(
            f"run {twice} is in more than one store; give each machine's study a label "
            "(launch.hardware)"
        )
    return runs, epochs


def read_table(path: Path) -> pd.DataFrame:
    """Return a CSV or Parquet file as a frame."""
    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path)
    except (ValueError, OSError, pd.errors.ParserError) as error:
        raise BadInput(f"{path}: not a CSV or Parquet table: {one_line(error)[:200]}") from None


def write_table(path: Path, table: pa.Table, *, raw: bool = False) -> None:
    """Write a table to a file of one of ``KINDS``, as its ending says.

    Parquet keeps every type. In text a value that is missing is empty (CSV) or null (JSON lines),
    and one that was measured and is not a number, such as a loss that diverged, is ``NaN``.
    A CSV cell that a spreadsheet would take for a formula gets an apostrophe before it, unless
    ``raw``; ``store.rows`` takes it away again.
    """
    in_csv = _in_csv if raw else _without_formula
    kind = path.suffix.lower()
    if kind == ".parquet":
        write_parquet(path, table)
        return
    with (
        replacing(path, durable=False) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        if kind == ".csv":
            rows = csv.writer(file)  # as RFC 4180 has it: a lone carriage return is quoted too
            rows.writerow([in_csv(name) for name in table.schema.names])
        for batch in table.to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                if kind == ".csv":
                    rows.writerow([in_csv(value) for value in row.values()])
                else:
                    plain = {name: _in_json(value) for name, value in row.items()}
                    file.write(json.dumps(plain, allow_nan=False, ensure_ascii=False) + "\n")


def _in_csv(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps([_in_json(item) for item in value], ensure_ascii=False)
    return _in_json(value)


def _without_formula(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; a number is none."""
    cell = _in_csv(value)
    if isinstance(value, str) and FORMULA.match(value) and not _is_number(value):
        return f"'{cell}"
    return cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        return [_in_json(item) for item in value]
    return value
