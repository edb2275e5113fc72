"""Quality against global batch."""

from wattlaw.analysis.batch_effects import BatchQuality
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import differing_options, group_label
from wattlaw.formatting import interval, number, p_value
from wattlaw.report.tables.table import Column, Table, make, words


def verdicts(findings: Findings) -> Table | None:
    """Return, for runs that learn alike, up to which batch quality holds and where it falls."""
    rows = findings.quality.rows
    columns = [
        Column("runs of", lambda row: label(findings, row), numeric=False),
        Column("metric", lambda row: row.group["metric_name"] or "metric", numeric=False),
        Column("better", lambda row: row.better or "not known", numeric=False),
        Column("verdict", lambda row: row.verdict, numeric=False),
        Column("holds to", lambda row: number(row.holds_to, 9)),
        Column("falls beyond", lambda row: number(row.falls_beyond, 9)),
        Column("in words", lambda row: row.sentence, numeric=False),
    ]
    return make(
        "batch_verdicts",
        "Quality against global batch: verdicts",
        columns,
        rows,
        note="Multiple comparisons with the best (Hsu): a fall is shown at 95 % for all batches "
        "together; that quality holds is shown within a margin of 1 % of the best.",
    )


def means(findings: Findings) -> Table | None:
    """Return the quality of each batch, with its distance from the best."""
    rows = [
        {"label": label(findings, one), **row}
        for one in findings.quality.rows
        for row in one.means.to_dict("records")
    ]
    columns = [
        words("runs of", "label"),
        Column("global batch", lambda row: number(row["global_batch"], 9)),
        Column("repeats", lambda row: number(row["n"])),
        Column("mean", lambda row: number(row["mean"], 4)),
        Column("SD", lambda row: number(row["sd"], 2)),
        Column("worse than the best by", lambda row: number(row["worse_by"], 2)),
        Column("95 % interval", lambda row: interval(
            row["worse_by_low"], row["worse_by_high"], 2)),
        Column("p of being the best", lambda row: p_value(row["p_value"])),
        words("verdict", "verdict"),
    ]  # fmt: skip
    return make(
        "batch_means",
        "Quality after the last epoch, by global batch",
        columns,
        rows,
    )


def label(findings: Findings, row: BatchQuality) -> str:
    """Return which runs a finding is about, by what differs among the store's."""
    told = {"workload": row.group["workload"]}
    for name in ("options", "train"):
        shorter = differing_options(findings.runs[name])
        value = row.group.get(name)
        told[name] = shorter.get(value) if isinstance(value, str) else None
    for name in ("hardware", "precision", "dataset_fraction"):
        if name in findings.varying_settings:
            told[name] = row.group.get(name)
    if findings.runs["epochs_trained"].nunique() > 1:
        told["epochs_trained"] = row.group.get("epochs_trained")
    return group_label(told)
