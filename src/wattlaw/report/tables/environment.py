"""Where it ran: hardware, software, settings; and what the models are."""

from typing import Any

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.formatting import NONE, known, number
from wattlaw.report.tables.table import Column, Table, make, words


def facts(findings: Findings) -> Table | None:
    """Return what ran on what."""
    columns = [
        Column("what", lambda row: row[0], numeric=False),
        Column("was", lambda row: row[1], numeric=False),
    ]
    return make("facts", "Environment", columns, findings.facts.items())


def models(findings: Findings) -> Table | None:
    """Return the workloads with their sizes and batches."""
    runs = findings.runs
    if runs.empty:
        return None
    by = runs.groupby("workload", dropna=False)
    rows = [
        {
            "workload": workload,
            "parameters": one["parameters"].max(),
            "flops": one["flops_per_sample"].max(),
            "samples": one["samples_per_epoch"].max(),
            "epochs": _range(one["epochs_trained"]),
            "n": _range(one["gpus"]),
            "local": _range(one["local_batch"]),
            "global": _range(one["global_batch"]),
            "metric": ", ".join(sorted(one["metric_name"].dropna().unique())),
            "runs": len(one),
        }
        for workload, one in by
    ]
    columns = [
        words("workload", "workload"),
        Column("parameters", lambda row: number(row["parameters"], 3)),
        Column("operations per sample", lambda row: _giga(row["flops"])),
        Column("samples per epoch", lambda row: number(row["samples"])),
        Column("epochs", lambda row: row["epochs"]),
        Column("N", lambda row: row["n"]),
        Column("local batch", lambda row: row["local"]),
        Column("global batch", lambda row: row["global"]),
        words("metric", "metric"),
        Column("runs", lambda row: number(row["runs"], 9)),
    ]
    return make("models", "Workloads", columns, rows)


def _range(values: pd.Series) -> str:
    there = values.dropna()
    if there.empty:
        return NONE
    low, high = there.min(), there.max()
    return number(low, 9) if low == high else f"{number(low, 9)} to {number(high, 9)}"


def _giga(operations: Any) -> str:
    return f"{number(operations / 1e9)} G" if known(operations) else NONE
