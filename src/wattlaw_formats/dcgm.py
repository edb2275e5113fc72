"""Metrics of NVIDIA's DCGM exporter: Prometheus text with times, and answers to range queries.

``GET /api/v1/query_range?query=DCGM_FI_DEV_POWER_USAGE&...`` gives one file for each metric; name
all of them in one import. A value that DCGM does not have is a blank, such as 9223372036854775794.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, moment_ns, number
from wattlaw.importing.readings import UUIDS, SampleRows, describe, joined_hosts
from wattlaw.importing.runs import HOST

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
_GPUS = ("UUID", "uuid", "gpu", "device", "gpu_id")
#: Labels that name the node, the best ones first. ``Hostname`` may be the exporter's pod.
_NODES = ("node", "kubernetes_node", "nodename", "Hostname", "exported_instance", "instance")
_POD = re.compile(r"-[a-z0-9]{5}$|^\d+\.\d+\.\d+\.\d+(?::\d+)?$")
_OTHER_SERIES = "another series of the same GPU and time"
#: Host and name of a GPU; no host where the name is a UUID.
Gpu = tuple[str, str]
#: Row, metric, labels, time, value.
Value = tuple[int, str, Mapping[str, str], int | None, float | None]


class DcgmImporter:
    name = "dcgm"
    description = "metrics of the DCGM exporter: Prometheus text or range-query JSON"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return b"DCGM_FI_" in head and (b"{" in head)

    def read(self, source: Source, options: Options) -> Imported:  # noqa: ARG002 - the protocol's
        path, account = source.path, source.account
        values = _of_json(source) if source.begins_with("{") else _of_text(source)
        #: By GPU and time: the values by column, and the row of each.
        samples: dict[tuple[Gpu, int], dict[str, tuple[float, int]]] = {}
        rows, facts, undated = SampleRows(path), dict[Gpu, dict[str, Any]](), 0
        seen: dict[Gpu, None] = {}  # host and GPU
        for row, metric, labels, t_ns, value in values:
            if metric not in _METRICS:
                account.leave_out("another metric", row)
                continue
            gpu = next((labels[name] for name in _GPUS if labels.get(name)), "")[:100]
            if t_ns is None or not gpu:
                undated += 1
                account.leave_out("no time or no GPU", row)
                continue
            if value is None or value >= _BLANK_64 or _BLANK_32[0] <= value < _BLANK_32[1]:
                account.leave_out("a blank value", row)
                continue
            host = next((labels[name] for name in _NODES if labels.get(name)), HOST)[:100]
            seen[host, gpu] = None
            key = ("" if gpu.startswith(UUIDS) else host, gpu)
            column, factor = _METRICS[metric]
            own = samples.setdefault((key, t_ns), {})
            if column in own and not metric.endswith("_INSTANT"):
                account.leave_out(_OTHER_SERIES, row)
                continue
            if column in own:
                account.leave_out(_OTHER_SERIES, own[column][1])
            own[column] = value * factor, row
            account.read(row)
            if len(samples) > _MAX_SAMPLES:
                raise BadInput(f"{path}: more than {_MAX_SAMPLES:,} readings")
            of_gpu = facts.setdefault(key, {"power": "usage"})
            if labels.get("GPU_I_ID"):
                of_gpu["is_shared"] = True
            if labels.get("modelName"):
                rows.names.add(labels["modelName"][:200])
        if not samples and undated:
            remedy = "save a range query, or text with times"
            raise BadInput(f"{path}: {undated:,} values without a time or a GPU; {remedy}")
        # A pod may be another one of the same node.
        pods = {host for host, gpu in seen if not gpu.startswith(UUIDS) and _POD.search(host)}
        if len(pods) > 1:
            raise BadInput(
                f"{path}: the GPUs have no UUID, and their hosts {join_names(sorted(pods))} may be "
                "pods of an exporter on one node; keep the label UUID, or add one named node"
            )
        joined, host_of = joined_hosts(seen), {gpu: host for host, gpu in reversed([*seen])}
        named = {(host, gpu): (host or joined[host_of[gpu]], gpu) for host, gpu in facts}
        for (key, t_ns), known in samples.items():
            of_columns = {name: value for name, (value, _) in known.items()}
            rows.add(*named[key], "gpu", t_ns, of_columns)
        rows.facts = {named[key]: known for key, known in facts.items()}
        readings = rows.readings(account.texts())
        return Imported(describe("DCGM metrics", readings), readings=readings)


def _of_text(source: Source) -> Iterator[Value]:
    for row, line in source.lines():
        if line.startswith("#"):
            source.account.leave_out("a comment", row)
        elif (match := _LINE.fullmatch(line)) is not None:
            t_ns = moment_ns(match[4], UTC) if match[4] else None
            yield row, match[1], dict(_LABEL.findall(match[2])), t_ns, number(match[3])
        else:
            source.account.leave_out("no metric of DCGM with labels and a value", row)


def _of_json(source: Source) -> Iterator[Value]:
    path, data = source.path, source.json()
    if not isinstance(data, dict) or data.get("status", "success") != "success":
        raise BadInput(f"{path}: not a successful answer to a range query")
    data = data.get("data", data)
    results = data.get("result") if isinstance(data, dict) else None
    if not isinstance(results, list):
        raise BadInput(f"{path}: no data.result as in an answer to a range query")
    for result in results:
        known = result if isinstance(result, dict) else {}
        named = known.get("metric")
        labels = {str(k): str(v) for k, v in named.items()} if isinstance(named, dict) else {}
        metric = labels.get("__name__", "")
        pairs = known.get("values", [known.get("value")])
        for row, pair in source.items(pairs if isinstance(pairs, list) else [pairs], "value"):
            if isinstance(pair, list) and len(pair) == 2:
                yield row, metric, labels, moment_ns(str(pair[0]), UTC), number(pair[1])
            else:
                source.account.leave_out("no pair of time and value", row)


IMPORTER = DcgmImporter()
