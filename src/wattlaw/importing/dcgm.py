"""Metrics of NVIDIA's DCGM exporter: Prometheus text with times, and answers to range queries.

``GET /api/v1/query_range?query=DCGM_FI_DEV_POWER_USAGE&...`` gives one file for each metric; name
all of them in one import. A value that DCGM does not have is a blank, such as 9223372036854775794.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import left_out, lines_of, ns_of, number, read_json
from wattlaw.importing.runs import HOST
from wattlaw.importing.timeseries import SampleRows, describe

#: By metric: the column of a sample, and the factor to its unit.
_METRICS: Mapping[str, tuple[str, float]] = {
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": ("power_w", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", 1.0),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("power_limit_w", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("sm_util", 0.01),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_util", 0.01),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("mem_clock_mhz", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("sm_occupancy", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_util", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_util", 1.0),
}
#: DCGM's blanks of 64-bit floats and integers are this or more, those of 32 bits this to the next.
_BLANK_64, _BLANK_32 = 140_737_488_355_328.0, (2_147_483_632.0, 2_147_483_648.0)
_LINE = re.compile(r"(DCGM_FI_\w+)\{(.*)\}\s+(\S+)(?:\s+(\S+))?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: Greater times are milliseconds: the year 5138 in seconds, 1973 in milliseconds.
_MS_FROM = 1e11
_MAX_SAMPLES = 2_000_000
Value = tuple[str, Mapping[str, str], float | None, float | None]  # metric, labels, time, value


class DcgmImporter:
    """Power, energy and utilisation of NVIDIA GPUs."""

    name = "dcgm"
    description = "metrics of the DCGM exporter: Prometheus text or range-query JSON"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether there is a metric of DCGM."""
        return b"DCGM_FI_" in head and (b"{" in head)

    def read(self, path: Path, options: Options) -> Imported:  # noqa: ARG002 - the protocol's
        """Return the readings of each GPU."""
        is_json = next((line for _, line in lines_of(path) if line.strip()), "").startswith("{")
        values = _of_json(path) if is_json else _of_text(path)
        samples: dict[tuple[str, str, int], dict[str, float]] = {}
        rows, undated, blank = SampleRows(path), 0, 0
        for metric, labels, time_s, value in values:
            if metric not in _METRICS:
                continue
            t_ns = None if time_s is None else ns_of(time_s)
            device = labels.get("UUID") or labels.get("gpu") or labels.get("device")
            if t_ns is None or not device:
                undated += 1
                continue
            if value is None or value >= _BLANK_64 or _BLANK_32[0] <= value < _BLANK_32[1]:
                blank += 1
                continue
            host = (labels.get("Hostname") or labels.get("instance") or HOST)[:100]
            column, factor = _METRICS[metric]
            own = samples.setdefault((host, device[:100], t_ns), {})
            if column not in own or metric.endswith("_INSTANT"):
                own[column] = value * factor
            if len(samples) > _MAX_SAMPLES:
                raise BadInput(f"{path}: more than {_MAX_SAMPLES:,} readings")
            facts = rows.facts.setdefault((host, device[:100]), {"power": "usage"})
            if labels.get("GPU_I_ID"):
                facts["is_shared"] = True
            if labels.get("modelName"):
                rows.names.add(labels["modelName"][:200])
        if not samples and undated:
            raise BadInput(
                f"{path}: {undated:,} values without a time or a GPU; save a range query, or text "
                "with times"
            )
        for (host, device, t_ns), own in samples.items():
            rows.add(host, device, "gpu", t_ns, own)
        readings = rows.readings()
        notes = left_out(values_without_a_time_or_a_GPU=undated, blank_values=blank)
        return Imported(describe("DCGM metrics", readings), readings=readings, notes=notes)


def _of_text(path: Path) -> Iterator[Value]:
    for _, line in lines_of(path):
        if (match := _LINE.fullmatch(line)) is None:
            continue
        time = number(match[4]) if match[4] else None
        if time is not None and time >= _MS_FROM:
            time /= 1000
        yield match[1], dict(_LABEL.findall(match[2])), time, number(match[3])


def _of_json(path: Path) -> Iterator[Value]:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("status", "success") != "success":
        raise BadInput(f"{path}: not a successful answer to a range query")
    data = data.get("data", data)
    results = data.get("result") if isinstance(data, dict) else None
    if not isinstance(results, list):
        raise BadInput(f"{path}: no data.result as in an answer to a range query")
    for result in results:
        if not isinstance(result, dict):
            continue
        named = result.get("metric")
        labels = {str(k): str(v) for k, v in named.items()} if isinstance(named, dict) else {}
        metric = labels.get("__name__", "")
        pairs = result.get("values", [result.get("value")])
        for pair in pairs if isinstance(pairs, list) else []:
            if isinstance(pair, list) and len(pair) == 2:
                yield metric, labels, number(pair[0]), number(pair[1])


IMPORTER = DcgmImporter()
