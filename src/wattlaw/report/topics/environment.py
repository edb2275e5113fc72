"""Environment: hardware, software, settings and workloads."""

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.formatting import MISSING, known, number
from wattlaw.report.topics.table import Column, Table, build_table, number_column, text_column


def facts(findings: Findings) -> Table | None:
    """Return hardware, software and settings of the runs."""
    columns = [text_column("item", lambda row: row[0]), text_column("value", lambda row: row[1])]
    return build_table("facts", "Environment", columns, findings.facts.items())


def models(findings: Findings) -> Table | None:
    """Return the workloads with their sizes and batches."""
    runs = findings.runs
    if runs.empty:
        return None
    rows = [
        {
            "workload": workload,
            "parameters": of_workload["parameters"].max(),
            "flops": of_workload["flops_per_sample"].max(),
            "samples": of_workload["samples_per_epoch"].max(),
            "epochs": _range(of_workload["epochs_trained"]),
            "gpus": _range(of_workload["gpus"]),
            "local": _range(of_workload["local_batch"]),
            "global": _range(of_workload["global_batch"]),
            "metric": ", ".join(sorted(of_workload["metric_name"].dropna().unique())),
            "runs": len(of_workload),
        }
        for workload, of_workload in runs.groupby("workload", dropna=False)
    ]
    columns = [
        text_column("workload", "workload"),
        number_column("parameters", "parameters"),
        Column("operations per sample", lambda row: f"{number(row['flops'] / 1e9)} G"
               if known(row["flops"]) else MISSING),
        number_column("samples per epoch", "samples"),
        Column("epochs", lambda row: row["epochs"]),
        Column("N", lambda row: row["gpus"]),
        Column("local batch", lambda row: row["local"]),
        Column("global batch", lambda row: row["global"]),
        text_column("metric", "metric"),
        number_column("runs", "runs", 9),
    ]  # fmt: skip
    return build_table("models", "Workloads", columns, rows)


def _range(values: pd.Series) -> str:
    values = values.dropna()
    if values.empty:
        return MISSING
    low, high = values.min(), values.max()
    return number(low, 9) if low == high else f"{number(low, 9)} to {number(high, 9)}"
