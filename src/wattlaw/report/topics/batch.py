"""Batch effects: quality against global batch, and the cost of reaching a target quality."""

from collections.abc import Iterator

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.batch_effects import CANNOT_TELL, FALLS, NO_FALL, BatchQuality
from wattlaw.analysis.metrics.groups import differing_options
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics.measured import setting_columns, with_labels

#: Explains B_crit where a sentence first names it.
_CRITICAL = (
    "the critical batch B_crit (samples per step at which epochs to the target have doubled)"
)


def means(findings: Findings) -> tables.Table | None:
    """Return the quality of each batch, and its difference from the best."""
    rows = [
        {"label": _label(findings, quality), **row}
        for quality in findings.quality
        for row in quality.means.to_dict("records")
    ]
    columns = [
        tables.text("runs of", "label"),
        tables.number("global batch", "global_batch", 9),
        tables.number("repeats", "n"),
        tables.number("mean", "mean", 4),
        tables.number("SD", "sd", 2),
        tables.number("worse than the best by", "worse_by", 2),
        tables.interval("95 % interval", "worse_by", 2),
        tables.p_value("p of being the best", "p_value"),
        tables.text("verdict", "verdict"),
    ]
    return tables.build(
        "batch_means", "Quality after the last epoch, by global batch", columns, rows
    )


def targets(findings: Findings) -> tables.Table | None:
    """Return epochs, time and energy to the target of each setting."""
    targets = findings.targets
    if targets is None:
        return None
    rows = with_labels(targets.settings, findings.varying_settings)
    seconds, time_unit = fmt.choose_unit(rows["time_to_target_s"], fmt.TIME_UNITS)
    size, unit = fmt.choose_unit(rows["energy_to_target_j"], fmt.ENERGY_UNITS)
    columns = [
        *setting_columns(findings.varying_settings),
        tables.Column(
            "reached by",
            lambda row: f"{fmt.number(row['runs_reached'])} of {fmt.number(row['runs'])}",
        ),
        tables.estimate("epochs", "epochs"),
        tables.number("statistical efficiency", "statistical_efficiency"),
        tables.scaled(f"time ({time_unit})", "time_to_target_s", seconds),
        tables.scaled(f"energy ({unit})", "energy_to_target_j", size),
        tables.text("energy is", "energy_is"),
        tables.text("why not", "why"),
    ]
    return tables.build(
        "targets",
        f"Time and energy to {fmt.number(targets.target, 6)}",
        columns,
        rows.to_dict("records"),
        note="Epochs to the target (statistical efficiency) times seconds and joules per epoch "
        "(system efficiency), without evaluation.",
    )


def quality_sentences(findings: Findings) -> Iterator[str]:
    """Yield where quality falls with the global batch, and the critical batches."""
    rows = [row for row in findings.quality if len(row.means)]
    for verdict in (FALLS, NO_FALL):
        for row in rows:
            if row.verdict == verdict:
                yield f"{_label(findings, row)}: {fmt.full_stop(row.sentence)}"
    undecided = sum(row.verdict == CANNOT_TELL for row in rows)
    if undecided:
        yield (
            "The data cannot tell whether quality falls with the global batch for "
            f"{undecided} of {fmt.plural(len(rows), 'group')} of runs; the table has the reasons."
        )
    if findings.targets is not None:
        name = _CRITICAL
        for group, law in findings.targets.critical:
            yield f"{group['workload']}: {fmt.full_stop(law.sentence.replace('B_crit', name, 1))}"
            name = "B_crit"
        for group, reason in findings.targets.refusals:
            yield f"{group['workload']}: no critical batch: {fmt.full_stop(reason)}"


def _label(findings: Findings, row: BatchQuality) -> str:
    """Return the name of a group of runs, by the settings that differ in the store."""
    settings = {"workload": row.group["workload"]}
    for name in ("options", "train"):
        shorter = differing_options(findings.runs[name])
        value = row.group.get(name)
        settings[name] = shorter.get(value) if isinstance(value, str) else None
    for name in ("hardware", "precision", "dataset_fraction"):
        if name in findings.varying_settings:
            settings[name] = row.group.get(name)
    if findings.runs["epochs_trained"].nunique() > 1:
        settings["epochs_trained"] = row.group.get("epochs_trained")
    return fmt.group_label(settings)
