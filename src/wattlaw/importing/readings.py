"""Readings of devices: collected from a file, and combined from several."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names
from wattlaw.importing.importer import Options, Readings
from wattlaw.importing.reading import MAX_READINGS
from wattlaw.measure.devices.meter import Facts
from wattlaw.measure.telemetry.plausibility import power_fault
from wattlaw.store.schema import SAMPLES

_MAX_NOTES = 20
#: How the names of GPUs begin that no two GPUs share.
UUIDS = ("GPU-", "MIG-")


class SampleRows:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: dict[str, list[Any]] = {name: [] for name in SAMPLES.names}
        self.facts: dict[tuple[str, str], dict[str, Any]] = {}
        self.names: set[str] = set()  # of the GPUs

    def __len__(self) -> int:
        return len(self._columns["t_ns"])

    def add(
        self, host: str, device: str, kind: str, t_ns: int, values: Mapping[str, float | None]
    ) -> None:
        """Add a reading; it has no others than ``values``, columns of ``store.schema.SAMPLES``."""
        if len(self) >= MAX_READINGS:
            raise BadInput(f"{self._path}: more than {MAX_READINGS:,} readings")
        row = {"host": host, "device": device, "kind": kind, "t_ns": t_ns, **values}
        if row.get("power_w") is not None or row.get("energy_j") is not None:
            row["power_source"] = "measured"
        for name, column in self._columns.items():
            column.append(row.get(name))

    def readings(self, left_out: Sequence[str] = ()) -> Readings:
        if not len(self):
            why = "; ".join(("no reading with a time and a value", *left_out[:3]))
            raise BadInput(f"{self._path}: {why}")
        samples = pa.table(self._columns, schema=SAMPLES)
        if (fault := _power_fault(samples)) is not None:
            raise BadInput(f"{self._path}: {fault}")
        return Readings(samples, self.facts, _only(self.names))


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def _power_fault(samples: pa.Table) -> str | None:
    """The median decides: a wrong unit changes all readings, and single ones can be wrong for other
    reasons; the verdict of an energy says so."""
    names = ["power_w", "power_limit_w"]
    frame = samples.select(["kind", "host", "device", "t_ns", "energy_j", *names]).to_pandas()
    for (kind, _, device), own in frame.groupby(["kind", "host", "device"], sort=False):
        watts = {f"median {name}": own[name].median() for name in names}
        counter = own.dropna(subset="energy_j").sort_values("t_ns")
        gained_j = counter["energy_j"].diff()
        # Without the largest increase, which a wrong reading may have caused.
        gained_j = gained_j[gained_j > 0].sort_values()[:-1]
        span_s = (counter["t_ns"].max() - counter["t_ns"].min()) * 1e-9
        if len(gained_j) and span_s:
            watts["increase of energy_j"] = gained_j.sum() / span_s
        for what, value in watts.items():
            fault = power_fault(f"the {what} of {device[:100]}", kind, float(value))
            if value > 0 and fault is not None:
                return fault
    return None


def describe(kind: str, readings: Readings, options: Options | None = None) -> str:
    """Return what a time series is: ``nvidia-smi log: 2 GPUs, 1,204 readings over 20 min``."""
    samples = readings.samples
    gpus = gpus_of(samples)
    others = samples.group_by(["host", "device"]).aggregate([]).num_rows - len(gpus)
    named = ((len(gpus), "GPU"), (others, "other device"))
    devices = [plural(number, noun) for number, noun in named if number]
    zone = "" if options is None else f", times in {options.zone_note}"
    bounds = pc.min_max(samples["t_ns"]).as_py()
    seconds = (bounds["max"] - bounds["min"]) * 1e-9
    span = f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.4g} min"
    return f"{kind}: {', '.join(devices)}, {len(samples):,} readings over {span}{zone}"


def gpus_of(samples: pa.Table) -> list[tuple[str, str]]:
    gpus = samples.filter(pc.field("kind") == "gpu").group_by(["host", "device"]).aggregate([])
    return [(row["host"], row["device"]) for row in gpus.to_pylist()]


def combined(series: Sequence[tuple[Path, Readings]]) -> tuple[Readings, list[str]]:
    """Return the readings of several files, and a note of each GPU without power. A GPU has its
    power from one file at a time. One without power is marked in the facts, so that sums that lack
    it are ``partial``; the second GPU of a board has none of its own."""
    _refuse_powers_twice(series)
    samples = pa.concat_tables([each.samples for _, each in series])
    joined = joined_hosts(gpus_of(samples))
    facts: dict[tuple[str, str], Facts] = {}
    for _, each in series:
        for (host, device), of_device in each.facts.items():
            key = joined.get(host, host), device
            facts[key] = {**facts.get(key, {}), **of_device}
    hosts = samples["host"].combine_chunks().dictionary_encode()
    names = [joined.get(host, host) for host in hosts.dictionary.to_pylist()]
    place = samples.schema.get_field_index("host")
    samples = samples.set_column(place, "host", pa.array(names, pa.string()).take(hosts.indices))
    has_power = pc.field("power_w").is_valid() | pc.field("energy_j").is_valid()
    powered, gpus, notes = {*gpus_of(samples.filter(has_power))}, gpus_of(samples), []
    if gpus and not powered:
        notes, gpus = ["no reading has the power of a GPU, so windows have no energy"], []
    for key in gpus:
        if key not in powered and not {"reporter", "failed"} & facts.get(key, {}).keys():
            failed = {"kind": "gpu", "failed": "the readings have no power of it"}
            facts[key] = {**facts.get(key, {}), **failed}
            notes.append(f"GPU {key[1]}: no power")
    hardware = _only({each.hardware for _, each in series if each.hardware})
    return Readings(samples, facts, hardware), notes[:_MAX_NOTES]


def _refuse_powers_twice(series: Sequence[tuple[Path, Readings]]) -> None:
    spans: dict[tuple[str, str, str], list[tuple[int, int, Path]]] = {}
    for path, each in series if len(series) > 1 else ():
        for column in ("power_w", "energy_j"):
            known = each.samples.filter(pc.field(column).is_valid())
            table = known.group_by(["host", "device"]).aggregate([("t_ns", "min_max")])
            for row in table.to_pylist():
                first, last = row["t_ns_min_max"]["min"], row["t_ns_min_max"]["max"]
                own = spans.setdefault((column, row["host"], row["device"]), [])
                for begin, end, other in own:
                    if first < end and begin < last:
                        raise BadInput(
                            f"{path}: has {column.partition('_')[0]} of device {row['device']} at "
                            f"the same times as {other}; import files of several machines or GPUs "
                            "one by one, or log the uuid of GPUs"
                        )
                own.append((first, last, path))


def joined_hosts(gpus: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a name for each host, one for hosts that have a GPU of the same UUID: the pod of an
    exporter is another one after a restart."""
    joined: dict[str, str] = {}
    first: dict[str, str] = {}  # by UUID, a host that has it

    def root(host: str) -> str:
        while joined.setdefault(host, host) != host:
            host = joined[host]
        return host

    for host, device in gpus:
        name = root(host)
        if device.startswith(UUIDS):
            joined[name] = root(first.setdefault(device, name))
    return {host: root(host) for host in joined}


def selected(readings: Readings, devices: Sequence[str]) -> tuple[Readings, list[str]]:
    if not devices:
        return readings, []
    known = pc.unique(readings.samples["device"]).to_pylist()
    for device in devices:
        if device not in known:
            raise BadInput(f"--device: no {device!r}; the readings have: {join_names(known)}")
    samples = readings.samples.filter(pc.is_in(readings.samples["device"], pa.array(devices)))
    facts: dict[tuple[str, str], Facts] = {}
    for key, of_device in readings.facts.items():
        if key[1] not in devices:
            continue
        more: Facts = {}
        # The other GPU of its board may not be among the devices.
        board, reporter = of_device.get("board"), of_device.get("reporter")
        if board and board not in devices:
            more = {"is_shared": True}
        elif reporter and reporter not in devices:
            more = {"kind": "gpu", "failed": f"GPU {reporter} has the power of its board"}
        facts[key] = {**of_device, **more}
    others = sorted({*known} - {*devices})
    count = len(readings.samples) - len(samples)
    left_out = f"{plural(count, 'reading')} left out: of {join_names(others)}, not in --device"
    return replace(readings, samples=samples, facts=facts), [left_out] if others else []
