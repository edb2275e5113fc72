"""What ran on what, in words, from the table of runs."""

import json

import pandas as pd

from wattlaw.analysis.groups import differing_options
from wattlaw.formatting import setting_label


def facts(runs: pd.DataFrame) -> dict[str, str]:
    """Return what the done runs were and where they ran; what is not known is left out."""
    done = runs[runs["status"] == "done"]
    begun, ended = done["started_at"].min(), done["finished_at"].max()
    facts_by_name = {
        "Studies": _listed(runs["study"]),
        "Workloads": _listed(done["workload"]),
        "Hardware": _listed(done["hardware"]),
        "GPUs or workers": _listed(done["gpus"]),
        "Power limits (W)": _listed(done["power_limit_w"]),
        "Clock limits (MHz)": _listed(done["clock_limit_mhz"]),
        "Precision": _listed(done["precision"]),
        "Options": _options(done),
        "Launcher": _listed(done["launcher"]),
        "Partitions": _listed(done["partition"]),
        "Ran": ""
        if pd.isna(begun) or pd.isna(ended)
        else f"{begun:%Y-%m-%d %H:%M} to {ended:%Y-%m-%d %H:%M} UTC",
        "Software": _software(done["software"]),
        "Git commit": _listed(done["git_commit"]),
    }
    return {name: shown for name, shown in facts_by_name.items() if shown}


def notes(runs: pd.DataFrame) -> tuple[str, ...]:
    """Return what the runs noted, the most frequent first, with how many said it."""
    counted = runs["notes"].explode().dropna().value_counts()
    return tuple(f"{note} ({count} runs)" for note, count in counted.items())


def _software(texts: pd.Series) -> str:
    versions: dict[str, set[str]] = {}
    for text in texts.dropna().unique():
        for package, version in json.loads(text).items():
            versions.setdefault(package, set()).add(version)
    return ", ".join(
        f"{name} {', '.join(sorted(facts_by_name))}" for name, facts_by_name in versions.items()
    )


def _options(done: pd.DataFrame) -> str:
    texts_of_workloads = []
    for workload, rows in done.groupby("workload"):
        differ = differing_options(rows["options"]) if rows["options"].nunique() > 1 else {}
        texts = sorted(differ) if differ else sorted(rows["options"].dropna().unique())
        shown = [formatted for text in texts if (formatted := setting_label("options", text))]
        texts_of_workloads += [f"{workload}: {'; '.join(shown)}"] if shown else []
    return " | ".join(texts_of_workloads)


def _listed(values: pd.Series) -> str:
    facts_by_name = sorted(values.dropna().unique())
    return ", ".join(
        f"{value:g}" if isinstance(value, float) else str(value) for value in facts_by_name
    )
