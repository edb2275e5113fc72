"""Checks of the rows of a log of GPUs: the GPU of each row, missing power, and repeats.

A row that may be of another GPU, and a log without power, are refused; the message says what to log
instead.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput
from wattlaw.importing.importer import Options, Readings
from wattlaw.importing.reading import Source
from wattlaw.importing.runs import HOST

#: Rows of one tick are closer than this, and than half of the time to the next tick.
_TICK_NS, _TICK_RATIO, _MAX_GPUS = 500_000_000, 2.0, 16
#: This share of the ticks, and at least two, have the same number of rows.
_REGULAR = 0.5
#: One GPU has fewer readings of equal times.
_EQUAL = 0.02
#: Power of several GPUs in turn: the change from row to row is at least this share of its mean, and
#: ten times that from one round to the next. Sensors of one GPU average for longer than its rows.
_CHANGE, _ROUND, _MAX_ROUND, _QUICK_NS = 0.05, 0.1, 8, 50_000_000
#: Gaps of rows that change by less may be those of a coarse clock.
_CHANGE_NS = 20_000_000
#: A log appended to another one begins later, apart from changes of the clock.
_BACK_NS = 10**9
#: A GPU with two powers at more than this share of its times is two GPUs.
_TWICE = 0.05
#: A file is of several logs if a GPU has several readings in more than this share of its ticks, of
#: which there are at least so many.
_SHARED, _LEAST_TICKS = 0.9, 5
#: Both GPUs of these boards are one reading of power, on the first one.
_BOARDS = ("MI250",)

Times = npt.NDArray[np.int64]
_POWERS = ["power_w", "energy_j"]


def checked(
    source: Source, readings: Readings, lines: Sequence[int], options: Options, remedy: str
) -> tuple[Readings, list[str]]:
    """Return the readings that count, and what the user should know. ``lines`` are the numbers of
    their lines; a device without a name is ``""``. ``remedy`` says how to log power."""
    frame = readings.samples.select(["device", "t_ns", "sm_util", *_POWERS]).to_pandas()
    frame = _with_ids(source, frame.assign(line=np.array(lines, np.int64)), options)
    # A GPU whose power is never known, or always 0, keeps its other values, and counts as failed.
    is_known = frame[_POWERS].notna().any(axis=1)
    is_on = (frame[_POWERS] > 0).any(axis=1).groupby(frame["device"], sort=False).any()
    devices, without = [*is_on.index], [*is_on.index[~is_on]]
    if len(without) == len(devices):
        what = "power is 0 throughout" if is_known.any() else "no power, or N/A throughout"
        raise BadInput(f"{source.path}: {what}; {remedy}")
    frame = frame.assign(failed=frame["device"].isin(without))
    source.account.leave_out("no power", *frame["line"][~is_known & ~frame["failed"]])
    facts, notes = _facts_of_boards(readings, devices, without, options)
    frame = _once(source, frame[is_known | frame["failed"]])
    _refuse_second_logs(source, frame)
    samples = readings.samples.take(frame.index.to_numpy())
    columns = {name: samples[name] for name in samples.schema.names}
    columns["device"] = pa.array(frame["device"], pa.string())
    for name in (*_POWERS, "power_source"):
        columns[name] = pc.if_else(pa.array(frame["failed"]), None, columns[name])
    samples = pa.table(columns, schema=samples.schema)
    return replace(readings, samples=samples, facts=facts), notes


def _with_ids(source: Source, frame: pd.DataFrame, options: Options) -> pd.DataFrame:
    has_id = frame["device"] != ""
    if has_id.any():
        source.account.leave_out("no index or uuid of the GPU", *frame["line"][~has_id])
        return frame[has_id]
    t_ns, gpus = frame["t_ns"].to_numpy(), options.constants.get("gpus", 1)
    sizes = ticks(t_ns)
    if sizes is None and not _takes_turns(t_ns, frame["power_w"].to_numpy()):
        return frame.assign(device="0")
    if sizes is not None and gpus > 1 and (sizes == gpus).all():
        return frame.assign(device=(np.arange(len(frame)) % gpus).astype(str))
    raise BadInput(
        f"{source.path}: line {frame['line'].iloc[1]}: rows of several GPUs (such as two readings "
        "of one time) without the index or uuid of the GPU; log the index or uuid, or set --map "
        "gpus=@N if each tick has all N GPUs in the same order"
    )


def ticks(t_ns: Times) -> npt.NDArray[np.int64] | None:
    """Return the rows of each tick, of times in the order of a file; None where each is its own. A
    command prints the rows of all GPUs in milliseconds and then waits: the same number of short
    gaps follows each long one. Irregular times of one GPU have no such rhythm."""
    gaps = np.abs(np.diff(t_ns))
    if len(gaps) < 2:
        return np.array([2]) if len(gaps) and not gaps[0] else None
    ordered = np.sort(gaps)
    wide = np.flatnonzero((ordered[1:] > _TICK_RATIO * ordered[:-1]) & (ordered[:-1] < _TICK_NS))
    for place in wide[::-1]:
        edges = np.flatnonzero(gaps > ordered[place])
        sizes = np.diff(np.concatenate([[-1], edges, [len(gaps)]]))
        kinds, counts = np.unique(sizes, return_counts=True)
        usual = int(kinds[counts == counts.max()].max())
        least = max(min(2, len(gaps) - 2), _REGULAR * len(sizes))
        if 1 < usual <= _MAX_GPUS and counts.max() >= least:
            return sizes
    if (rows := _rhythm(gaps)) > 1:
        return np.bincount(np.arange(len(t_ns)) // rows)
    is_often_equal = (gaps == 0).mean() > _EQUAL
    return np.unique(t_ns, return_counts=True)[1] if is_often_equal else None


def _rhythm(gaps: Times) -> int:
    """Return after how many rows their gaps repeat, as those of several loggers do; 1 if never."""
    change_ns = np.median(np.abs(np.diff(gaps)))
    if change_ns < _CHANGE_NS or not (gaps % 10**9).any():
        return 1  # whole seconds of a slower or faster clock have a rhythm too
    for rows in range(2, _MAX_ROUND + 1):
        repeated = np.abs(gaps[rows:] - gaps[:-rows])
        if len(repeated) >= 3 * rows and np.median(repeated) < _ROUND * change_ns:
            return rows
    return 1


def _takes_turns(t_ns: Times, power_w: npt.NDArray[np.float64]) -> bool:
    power_w = power_w[np.isfinite(power_w)]
    if len(power_w) < 5 * _MAX_ROUND or np.median(np.diff(t_ns)) >= _QUICK_NS:
        return False
    change = np.abs(np.diff(power_w)).mean()
    rounds = (np.abs(power_w[k:] - power_w[:-k]).mean() for k in range(2, _MAX_ROUND + 1))
    return bool(change > _CHANGE * power_w.mean() and min(rounds) < _ROUND * change)


def _facts_of_boards(
    readings: Readings, devices: Sequence[str], without: Sequence[str], options: Options
) -> tuple[dict[tuple[str, str], Any], list[str]]:
    """Logs do not name the board: unless the user does, missing power counts as a fault."""
    named = str(options.constants.get("hardware") or readings.hardware or "").upper()
    is_board, known = any(name in named for name in _BOARDS), readings.facts
    facts: dict[str, dict[str, Any]] = {
        each: {**known.get((HOST, each), known.get((HOST, ""), {}))} for each in devices
    }
    notes = []
    for each in without:
        before = str(int(each) - 1) if each.isdecimal() and int(each) % 2 else ""
        has_reporter, note = before in devices and before not in without, ""
        facts[each] |= {"kind": "gpu", "failed": "the log has no power of it"}
        if has_reporter:
            facts[before]["board"] = each
            facts[each]["reporter"] = before
            note = (
                f"; if GPU {before} has the power of both, as on an MI250X, name the board with "
                "--hardware"
            )
        if has_reporter and is_board:
            del facts[each]["failed"]
            notes.append(f"GPU {before} has the power of its board, of which GPU {each} is a part")
        else:
            notes.append(f"GPU {each}: its power is not available or 0 throughout{note}")
    for each in {*devices} - {*without} if is_board else ():
        if "board" not in facts[each]:
            facts[each]["is_shared"] = True  # the other GPU of its board is not in the log
    return {(HOST, each): own for each, own in facts.items()}, notes


def _once(source: Source, frame: pd.DataFrame) -> pd.DataFrame:
    ordered = frame.sort_values(["device", "t_ns"])
    values = ordered[["sm_util", *_POWERS]]
    after = values.shift(-1)
    is_twice = ordered.duplicated(["device", "t_ns"], keep="last")
    is_equal = ((values == after) | values.isna() | after.isna()).all(axis=1)
    equal, other = is_twice & is_equal, is_twice & ~is_equal
    if other.sum() > max(1, _TWICE * len(frame)):
        line = int(ordered["line"].shift(-1)[other].min())
        raise BadInput(
            f"{source.path}: line {line}: a second reading of a GPU for the same time: the file "
            "has logs of several machines, or a clock was set back; log the uuid of GPUs, and "
            "import logs of several machines one by one"
        )
    source.account.leave_out("an equal reading of the same time follows", *ordered["line"][equal])
    source.account.leave_out("another reading of the same time follows", *ordered["line"][other])
    return ordered[~is_twice].sort_index()


def _refuse_second_logs(source: Source, frame: pd.DataFrame) -> None:
    """Refuse logs that follow each other, or of machines that wrote at the same time, and number
    their GPUs from 0: then most ticks have several readings of a GPU."""
    headers = np.array(source.account.headers, np.int64)
    for device, own in frame.groupby("device", sort=False):
        if not str(device).isdecimal():
            continue
        t_ns, line = own["t_ns"].to_numpy(), own["line"].to_numpy()
        sizes = ticks(t_ns)
        if sizes is not None and len(sizes) >= _LEAST_TICKS and (sizes > 1).mean() > _SHARED:
            raise BadInput(
                f"{source.path}: line {line[1]}: GPU {device} has several readings in each tick; "
                "the file may have logs of several machines, so log the uuid of GPUs, or a file "
                "for each machine"
            )
        begins = np.flatnonzero(np.diff(np.searchsorted(headers, line))) + 1
        back_ns = np.maximum.accumulate(t_ns)[begins - 1] - t_ns[begins]
        if (back_ns > _BACK_NS).any():
            place = int((back_ns > _BACK_NS).argmax())
            raise BadInput(
                f"{source.path}: line {line[begins[place]]}: a second log begins "
                f"{back_ns[place] * 1e-9:,.0f} s before the end of the first one, and GPU {device} "
                "may be that of another machine; import each log alone, or log the uuid of GPUs"
            )
