"""Metrics of NVIDIA's DCGM exporter: Prometheus text with times, and answers to range queries.

``GET /api/v1/query_range?query=DCGM_FI_DEV_POWER_USAGE&...`` gives one file for each metric; name
all of them in one import. A value that DCGM does not have is a blank, such as 9223372036854775794.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from pathlib import Path

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, moment_ns, number
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
_MAX_SAMPLES = 2_000_000
#: Row, metric, labels, time, value.
Value = tuple[int, str, Mapping[str, str], int | None, float | None]


class DcgmImporter:
    """Power, energy and utilisation of NVIDIA GPUs."""

    name = "dcgm"
    description = "metrics of the DCGM exporter: Prometheus text or range-query JSON"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether there is a metric of DCGM."""
        return b"DCGM_FI_" in head and (b"{" in head)

    def read(self, source: Source, options: Options) -> Imported:  # noqa: ARG002 - the protocol's
        """Return the readings of each GPU."""
        path, account = source.path, source.account
        values = _of_json(source) if source.begins_with("{") else _of_text(source)
        samples: dict[tuple[str, str, int], dict[str, float]] = {}
        rows, undated = SampleRows(path), 0
        for row, metric, labels, t_ns, value in values:
            if metric not in _METRICS:
                account.leave_out("another metric", row)
                continue
            device = labels.get("UUID") or labels.get("gpu") or labels.get("device")
            if t_ns is None or not device:
                undated += 1
                account.leave_out("no time or no GPU", row)
                continue
            if value is None or value >= _BLANK_64 or _BLANK_32[0] <= value < _BLANK_32[1]:
                account.leave_out("a blank value", row)
                continue
            account.read(row)
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
        return Imported(describe("DCGM metrics", readings), readings=readings)


def _of_text(source: Source) -> Iterator[Value]:
    for row, line in source.lines():
        if line.startswith("#"):
            source.account.leave_out("a comment", row)
        elif (match := _LINE.fullmatch(line)) is not None:
            t_ns = moment_ns(match[4], UTC) if match[4] else None
            yield row, match[1], dict(_LABEL.findall(match[2])), t_ns, number(match[3])


def _of_json(source: Source) -> Iterator[Value]:
    path, data = source.path, source.json()
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
        for row, pair in source.items(pairs if isinstance(pairs, list) else [], "value"):
            if isinstance(pair, list) and len(pair) == 2:
                yield row, metric, labels, moment_ns(str(pair[0]), UTC), number(pair[1])


IMPORTER = DcgmImporter()
