"""Make the table of docs/benchmarks.md: ``python benchmarks/gpu_page.py [RESULTS]``.

A results file of a real GPU is kept in ``benchmarks/results``; without one, the newest of them is
used. Results of a rehearsal are refused: they say nothing about a GPU.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- table: make gpu-page -->\n", "<!-- end of the table -->\n"
NOT_RUN = "not yet run"
QUESTIONS = {
    "facts": "Which board, driver and software? What does NVML support?",
    "energy": "How do energy counter, integral of power, a counter read apart, and Zeus differ?",
    "overhead": "What does the sampler cost, and how much slower is a training?",
    "throughput": "How fast are the seven models in bf16, beside a plain loop?",
    "scripts": "Are the steps and step times of unmodified scripts those of their own CUDA events?",
    "study": "Does a decision on batch and precision find the best setting of the full grid?",
    "predict": "How good are predictions from the two smallest batches of the grid?",
    "unchanged": "Are the settings of the GPU the same before and after?",
}  # fmt: skip


def percent(value: float | None, digits: int = 1) -> str:
    """Return a relative difference."""
    return "unknown" if value is None else f"{100 * value:+.{digits}f} %"


def facts(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is known of the board."""
    if not (nvml := result.get("nvml")):
        return
    software, torch = result["software"], result.get("torch", {})
    yield "board", f"{nvml['nvmlDeviceGetName']}, driver {nvml['nvmlSystemGetDriverVersion']}"
    versions = {"Python": "python", "torch": "torch", "wattlaw": "wattlaw"}
    texts = [f"{name} {software.get(package)}" for name, package in versions.items()]
    yield "software", ", ".join([*texts, f"CUDA {torch.get('cuda')}"])
    yield "missing packages", "; ".join(result["missing_packages"]) or "none"
    for row in result.get("devices", {}).get("meters", []):
        for device in row["devices"]:
            if device["kind"] == "gpu":
                names = (
                    "energy_counter",
                    "counter_refresh_s",
                    "power",
                    "power_duty",
                    "virtualization",
                )
                known = {n: device["facts"].get(n) for n in names}
                texts = (v if isinstance(v, str | None) else f"{v:.3g}" for v in known.values())
                yield "facts", ", ".join(map("{} {}".format, known, texts))


def energy(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield median and largest differences of each load and length of window."""
    for load in result.get("loads", []):
        for row in load["windows"]:
            if row["windows"]:
                texts = [
                    f"{name} {percent(row[key]['median'])} (largest {percent(row[key]['largest'])})"
                    for name, key in (
                        ("counter over integral", "counter_over_integral"),
                        ("wattlaw over the counter read apart", "ours_over_apart"),
                    )
                ]
                verdicts = ", ".join(f"{count} {name}" for name, count in row["verdicts"].items())
                yield f"{load['load']}, {row['window_s']:g} s", f"{'; '.join(texts)}; {verdicts}"
        if zeus := load["zeus"]:
            text = (
                f"wattlaw over Zeus {percent(zeus['median'])} (largest {percent(zeus['largest'])})"
            )
            yield f"{load['load']}, {zeus['windows']} windows of Zeus", text


def overhead(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sampler's share of a core, and the slow-down."""
    for row in result.get("idle", []):
        yield f"idle, {row['hz']:g} Hz", f"{100 * row['share_of_a_core']:.2f} % of a core"
    if slow := result.get("slowdown"):
        low, high = map(percent, slow["median_95"], (2, 2))
        yield "training", f"{percent(slow['median'], 2)} ({low} to {high}), {slow['pairs']} pairs"


def throughput(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rates of each model."""
    for row in result.get("cases", []):
        rates = row.get("samples_per_s")
        if not rates:
            yield row["workload"], f"failed: {row['failed']}"
            continue
        texts = [f"{rates['ours']:.4g} samples/s"]
        texts += [f"{ratio['median']:.3f} x {name}" for name, ratio in row["ratio"].items()]
        if used := row.get("model_flops_utilisation"):
            texts.append(f"{100 * used['ours']:.0f} % of the peak")
        if joules := row["gpu"]["ours"]["j_per_sample"]:
            texts.append(f"{joules:.3g} J per sample")
        yield row["workload"], ", ".join([*texts, *(f"{k}: {v}" for k, v in row["failed"].items())])


def scripts(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield steps and step times of each script."""
    for row in result.get("scripts", []):
        text = f"{row['status']}, {row.get('steps')} steps"
        if row.get("own_steps") is not None:
            text += f" of {row['own_steps']}"
        if row.get("p50_ratio"):
            text += f", step time {percent(row['p50_ratio'] - 1, 2)} from the script's own"
        notes = [row["reason"], *row.get("notes", [])]
        yield row["mode"], "; ".join([text, *(str(note) for note in notes if note)])


def study(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the decision and its regret."""
    for row in result.get("grid", []):
        texts = [f"{row['time_per_sample_s']:.3g} s per sample"]
        if row["energy_per_sample_j"]:
            texts.append(f"{row['energy_per_sample_j']:.3g} J per sample ({row['energy_verdict']})")
        yield f"{row['precision']}, batch {row['local_batch']}", ", ".join(texts)
    for run in result.get("grid_not_done", []):
        yield f"run {run['run_id']}", f"{run['status']}: {run['reason']}"
    decision = result.get("decision") or {}
    if (setting := decision.get("setting")) and result["grid_gpu_s"]:
        share = 3600 * decision["gpu_hours_spent"] / result["grid_gpu_s"]
        regret = percent(result.get("regret_by_the_grid"))
        chosen = f"{setting['precision']}, batch {setting['local_batch']:g}"
        yield (
            "decision",
            f"{chosen}; regret {regret}; {100 * share:.0f} % of the grid's GPU-seconds",
        )


def predict(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the errors of each prediction."""
    inside = {True: " (inside its interval)", False: " (outside its interval)", None: ""}
    for row in result.get("predictions", []):
        texts = [
            f"{name} {percent(row[key]['error'])}{inside[row[key]['is_inside']]}"
            for key, name in (
                ("time_per_sample_s", "time"),
                ("power_per_gpu_w", "power"),
            )
        ]
        yield f"{row['precision']}, batch {row['local_batch']}", ", ".join(texts)


def unchanged(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield whether nothing has changed."""
    if "is_unchanged" in result:
        is_same = result["is_unchanged"]
        yield "settings", "the same" if is_same else f"{result['before']} became {result['after']}"


ROWS = {
    f.__name__: f for f in (facts, energy, overhead, throughput, scripts, study, predict, unchanged)
}


def table(content: dict[str, Any] | None) -> str:
    """Return the table of a results file, or of none."""
    lines = []
    if content is not None:
        lines += [f"Results of {content['date']} (`benchmarks/results`).", ""]
    lines += ["| part | what | result |", "|---|---|---|"]
    for name, question in QUESTIONS.items():
        part = (content or {"parts": {}})["parts"].get(name, {"status": "not started"})
        status = NOT_RUN if part["status"] == "not started" else part["status"]
        if part.get("reason"):
            status += f": {part['reason']}"
        lines.append(f"| **{name}** | {question} | {status} |")
        for what, value in ROWS[name](part.get("result", {})):
            lines.append("| | {} | {} |".format(what, " ".join(value.split()).replace("|", "/")))
    return "\n".join(lines) + "\n"


def page(text: str, content: dict[str, Any] | None) -> str:
    """Return the page with the table of a results file."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(content)}{END}{after}"


def newest() -> dict[str, Any] | None:
    """Return the newest results file that is kept, if there is one."""
    kept = [json.loads(path.read_text()) for path in KEPT.glob("gpu-acceptance-*.json")]
    return max(kept, key=lambda content: str(content["date"]), default=None)


def keep(path: Path) -> None:
    """Keep a results file, under the name of its board and month."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        is_rehearsal, parts, month = content["rehearsal"], content["parts"], content["date"][:7]
        is_done = any(part["status"] == "done" for part in parts.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        sys.exit(f"gpu_page.py: {path} is no results file of 'make gpu-acceptance': {error!r}")
    if is_rehearsal:
        sys.exit(f"gpu_page.py: {path} is of a rehearsal; only results of a GPU belong on the page")
    if not is_done:
        sys.exit(f"gpu_page.py: {path} has no part that is done; see the reasons in it")
    nvml = parts.get("facts", {}).get("result", {}).get("nvml", {})
    board = re.sub(r"[^a-z0-9]+", "-", str(nvml.get("nvmlDeviceGetName")).lower()).strip("-")
    kept = KEPT / f"gpu-acceptance-{board}-{month}.json"
    kept.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?")
    results = parser.parse_args().results
    if results is not None:
        keep(results)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), newest()), encoding="utf-8")


if __name__ == "__main__":
    main()
