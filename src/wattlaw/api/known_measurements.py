"""Known measurements, which a job is compared with: a table as ``wattlaw import`` reads it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput
from wattlaw.importing.reading import number
from wattlaw.store.field_map import map_by_names, parse_map
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.rows import read_rows

#: What a reference states beside the fields of an import: 10⁹ parameters of the model, GPUs of a
#: full node, and a text.
_OTHERS = ("params_b", "gpus_per_node", "note")
_REQUIRED = (("hardware",), ("options.params_b", "model.layers"))


def read_known(path: Path, mapping: str | None = None) -> tuple[pd.DataFrame, Counter[str]]:
    """Return the measurements of a table by their line, and how many rows are none, by the reason.

    ``setting`` is None where a row does not state its layout and its micro-batches.
    """
    if mapping is None:
        columns = read_rows(path).columns
        targets = map_by_names(columns, {}).targets.values()
        pairs = [(each.name, each.column) for each in targets]
        pairs += [(f"options.{name}", name) for name in _OTHERS if name in columns]
        mapping = ",".join(f'"{name}={column}"' for name, column in pairs)
    fields = parse_map(mapping, {})
    fields.check(f"{path}: as a reference", _REQUIRED)
    if (stated := fields.targets.get("precision")) and "options.precision" not in fields.targets:
        mapping += f',"options.precision={stated.column or f"@{stated.value}"}"'
    read = read_import(path, format="table", map=mapping)
    (file,) = read.files
    left_out = Counter({f"not read ({each.reason})": each.count for each in file.left_out})
    reasons = (text.partition(": ")[2].partition(";")[0] for text in file.rejected)
    left_out.update(f"not read ({reason})" for reason in reasons)
    done = {run.line: _known(run) for run in read.runs if run.record.status == "done"}
    if failed := len(read.runs) - len(done):
        left_out["out of memory or crashed"] = failed
    if not done:
        counts = "; ".join(f"{count:,} {reason}" for reason, count in left_out.most_common(3))
        raise BadInput(f"{path}: no row is a measurement: {counts}")
    return pd.DataFrame.from_dict(done, orient="index"), left_out


def _known(run: ImportedRun) -> dict[str, Any]:
    spec, facts, window = run.record.spec, run.record.facts, run.windows[0]
    setting, network, options = spec.setting, spec.workload.model, spec.workload.options
    # Precision and nodes that a table does not state are assumed by an import.
    precision = setting.precision if "precision" in options else None
    placed = replace(setting, nodes=spec.nodes, precision=precision)
    if node_gpus := number(options.get("gpus_per_node")):
        placed = placed.on_nodes_of(int(node_gpus))
    has_layout = facts.tp and facts.pp and facts.micro_batch and setting.local_batch
    samples, tokens = window.get("samples"), facts.tokens_per_sample
    size = None if network is None else network.parameters / 1e9
    model = options.get("workload", spec.workload.name)
    return {
        "source": str(options.get("source", "not stated")), "model": str(model),
        "texts": " ".join(map(str, (model, *options.values()))),
        "hardware": str(spec.hardware), "gpus": setting.gpus, "precision": precision,
        "params_b": number(options.get("params_b")) or size, "sequence": tokens,
        "tokens_per_s_per_gpu":
            samples and tokens and samples * tokens / window["duration_s"] / setting.gpus,
        "has_experts": setting.ep > 1 or bool(network and network.experts),
        "setting": placed if has_layout else None,
    }  # fmt: skip
