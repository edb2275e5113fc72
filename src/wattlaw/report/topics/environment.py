"""Environment: hardware, software, settings and workloads."""

import pandas as pd

from wattlaw import formatting as fmt
from wattlaw.analysis.findings import Findings
from wattlaw.report import tables


def facts(findings: Findings) -> tables.Table | None:
    """Return hardware, software and settings of the runs."""
    columns = [tables.text("item", lambda row: row[0]), tables.text("value", lambda row: row[1])]
    return tables.build("facts", "Environment", columns, findings.facts.items())


def models(findings: Findings) -> tables.Table | None:
    """Return the workloads with their sizes and batches."""
    runs = findings.runs
    if runs.empty:
        return None
    rows = [
        {
            "workload": workload,
            "parameters": rows_of_workload["parameters"].max(),
            "flops": rows_of_workload["flops_per_sample"].max(),
            "samples": rows_of_workload["samples_per_epoch"].max(),
            "epochs": _range(rows_of_workload["epochs_trained"]),
            "gpus": _range(rows_of_workload["gpus"]),
            "local": _range(rows_of_workload["local_batch"]),
            "global": _range(rows_of_workload["global_batch"]),
            "metric": ", ".join(sorted(rows_of_workload["metric_name"].dropna().unique())),
            "runs": len(rows_of_workload),
        }
        for workload, rows_of_workload in runs.groupby("workload", dropna=False)
    ]
    columns = [
        tables.text("workload", "workload"),
        tables.number("parameters", "parameters"),
        tables.Column("operations per sample", lambda row: f"{fmt.number(row['flops'] / 1e9)} G"
               if fmt.known(row["flops"]) else None),
        tables.number("samples per epoch", "samples"),
        tables.Column("epochs", "epochs"),
        tables.Column("N", "gpus"),
        tables.Column("local batch", "local"),
        tables.Column("global batch", "global"),
        tables.text("metric", "metric"),
        tables.number("runs", "runs", 9),
    ]  # fmt: skip
    return tables.build("models", "Workloads", columns, rows)


def _range(values: pd.Series) -> str:
    values = values.dropna()
    if values.empty:
        return fmt.MISSING
    low, high = values.min(), values.max()
    return fmt.number(low, 9) if low == high else f"{fmt.number(low, 9)} to {fmt.number(high, 9)}"
