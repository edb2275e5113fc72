"""Every table, figure and finding of the two studies: where it is here, its value there and here.

Both example studies are simulated, with two repeats of each setting, and ``wattlaw claims`` reads
the values of findings from these runs; exponents are those of ``published.py``. Nothing is
measured, and the seeds are fixed. Run with ``make bench-papers``, which writes the tables into
``docs/papers.md``.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pandas as pd

import published
import simulated_study
import wattlaw
from wattlaw.api.results import Results
from wattlaw_papers.api import claims_of
from wattlaw_papers.claims.verdicts import Claim
from wattlaw_papers.published import SOURCES

DOCUMENT = Path(__file__).parents[1] / "docs" / "papers.md"
BEGIN, END = "<!-- paper items: make bench-papers -->", "<!-- end of paper items -->"
#: Carbon intensity with which 128 boards of 250 W emit the published 22 kg per hour.
GRID_G_PER_KWH = 22_000 / (128 * 0.25)
REPEATS = 2
NOT_RUN = "not yet run on hardware"
#: More values than this are shown as their range.
_MAX_LISTED = 6
_CHECK = re.compile(r"([^\s:][^:;]*): (\S+) \(90 % interval")
#: The exponent under a limit that differs most from that without.
_BETA = re.compile(r"by at most (\S+) \(([^;]+);")
#: Parts of labels that are the same for all runs, and remarks.
_NOISE = re.compile(
    r" \((?!\d)[^()]*\)|, fp(16|32)|kit-(?=.100)|, recipe kit|, dataset fraction 1"
    r"|, data grows with N|, gradient accumulation \d+|(?<=, )stage (?=finetune)"
)
#: Workloads of claims on SM utilisation.
UTILISATION = {
    "gnn-sm-utilisation-falls": ("dimenet", "schnet"),
    "bert-sm-utilisation-stays": ("bert-base",),
}
#: Text of the papers on each finding, by the name of its claim.
FINDINGS = {
    "power-law-describes": "R² 0.90 to 0.99 over all counts",
    "beta-differs-between-models": "beta 0.42 to 0.87",
    "bert-scales-best": "beta 0.87; others at most 0.82",
    "dimenet-scales-better-than-schnet": "beta 0.82 and 0.42",
    "cnn-exponents-within-0.2": "beta 0.44 to 0.64",
    "vgg16-overtakes-resnet50-beyond-100": "beyond 100 GPUs",
    "schnet-leaves-the-law-beyond-64": "beyond 64 GPUs",
    "dimenet-speedup-60": "60",
    "bert-speedup-76": "76 on 424 GPUs",
    "bert-speedup-30-at-128": "> 30",
    "resnet50-speedup-20-at-128": "> 20, in the figure of energies",
    "cnn-speedup-5-to-6": "5 to 6 in the text; 8.7, 14 and 6.2 by the exponents",
    "caps-move-alpha-not-beta": "beta stays, alpha changes",
    "clocks-move-alpha-not-beta": "beta stays, alpha changes",
    "200w-costs-no-speed": "no loss of speed",
    "200w-saves-energy": "at least 10 % less",
    "100w-slows-clearly": "clearly slower",
    "schnet-insensitive-to-caps": "insensitive",
    "bert-fastest-at-200w": "fastest at 200 W",
    "slow-down-shrinks-at-128": "shrinks",
    "memory-utilisation-falls": "falls",
    "gnn-sm-utilisation-falls": "falls",
    "bert-sm-utilisation-stays": "stays",
    "sm-variation-rises": "rises",
    "memory-variation-rises": "rises",
    "energy-rises-with-gpus": "rises",
    "dimenet-energy-rises-threefold": "> 3",
    "128-v100-22-kg-co2-per-hour": "22 kg",
    "growing-data-constant-time": "constant",
    "growing-data-time-grows-slightly": "grows slightly",
    "resnet50-near-linear": "near-linear",
    "fourcastnet-not-past-4x": "near-linear to 4 times the GPUs",
    "energy-near-linear-in-gpu-hours": "close to linear",
    "factor-depends-on-hardware": "depends",
    "factor-depends-on-model": "depends",
    "factor-moves-with-samples": "moves",
    "factor-moves-with-steps": "moves",
    "resnet50-quality-falls-beyond-8192": "8192",
    "fourcastnet-pretrain-quality-falls-beyond-32": "32",
    "fourcastnet-finetune-quality-falls-beyond-64": "64",
    "fourcastnet-large-batch-effects-earlier": "earlier",
}
#: What the figures of each study show, the figure of the report, and where its values are.
FIGURES = {
    "mit-2022": (
        ("Figure 2: memory and SM utilisation at 2 and 128 GPUs", "joint",
         "gnn-sm-utilisation-falls, bert-sm-utilisation-stays"),
        ("mean utilisation against GPUs", "utilisation", "memory-utilisation-falls"),
        ("variation of utilisation against GPUs, by cap and clock",
         "variation_by_cap, variation_by_clock", "sm-variation-rises, memory-variation-rises"),
        ("normalised energy against normalised speed", "energy_speed",
         "energy-rises-with-gpus, dimenet-energy-rises-threefold, resnet50-speedup-20-at-128"),
        ("speed and energy by cap and by clock, at 2 and 128 GPUs",
         "effects_by_cap, effects_by_clock", "200w-saves-energy, slow-down-shrinks-at-128"),
        ("time per epoch against GPUs, by model", "epoch_time", "power-law-describes"),
        ("time per epoch against GPUs, by cap and clock",
         "epoch_time_by_cap, epoch_time_by_clock", "caps-move-alpha-not-beta"),
    ),
    "kit-2025": (
        ("energy against GPU-hours", "gpu_hours", "energy-near-linear-in-gpu-hours"),
        ("power per GPU against samples and steps per GPU-hour", "factor",
         "factor-moves-with-samples, factor-moves-with-steps"),
        ("strong scaling at constant global batch", "strong_scaling",
         "resnet50-near-linear, fourcastnet-not-past-4x"),
        ("constant local batch", "constant_local_batch",
         "energy-near-linear-in-gpu-hours, resnet50-quality-falls-beyond-8192"),
        ("data set that grows with the GPUs", "growing_data", "growing-data-constant-time"),
        ("quality against global batch", "quality", "fourcastnet-large-batch-effects-earlier"),
    ),
}  # fmt: skip
Row = Sequence[str]


def main() -> None:
    """Write the tables into the document between the two marks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    written = f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"
    DOCUMENT.write_text(written, encoding="utf-8")


def tables() -> str:
    """Return the findings of each study, and its tables and figures, as Markdown."""
    parts = []
    for study, source in SOURCES.items():
        results = simulated(study)
        claims = claims_of(results, grid=GRID_G_PER_KWH, pue=1.0)
        findings = [_finding(claim, results.metrics) for claim in claims if claim.study == study]
        shown = {name.strip("`"): value for _, name, *_, value in findings}
        others = [*_tables(study), *_figures(study, shown)]
        parts += [
            f"## {study}\n{source.citation} (<{source.url}>)\n",
            _markdown("claim", "name", "supported if", findings),
            _markdown("table or figure", "where", None, others),
        ]
    return "\n".join(parts)


def _markdown(what: str, where: str, criterion: str | None, rows: Iterable[Row]) -> str:
    heads = [what, where, criterion, "in the paper", "here, simulated"]
    table = [[head for head in heads if head], ["---"] * (4 + bool(criterion)), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def simulated(study: str) -> Results:
    """Return the runs of a study's files on its machines."""
    files, machines = simulated_study.STUDIES[study]
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            text = (simulated_study.EXAMPLES / f"{file}.yaml").read_text(encoding="utf-8")
            path = Path(folder) / f"{file}.yaml"
            path.write_text(re.sub(r"(?m)^repeats: \d+", f"repeats: {REPEATS}", text), "utf-8")
            for machine in machines:
                simulated_study.run_command(
                    ["run", str(path), "--launch", "simulated", "--hardware", machine,
                     "--store", f"{folder}/store"]
                )  # fmt: skip
        results = wattlaw.open(f"{folder}/store")
        _ = results.metrics  # reads the tables before the folder is removed
    return results


def _tables(study: str) -> Iterator[Row]:
    if study != "mit-2022":
        yield (
            "grids of GPUs and batches", "`wattlaw examples copy kit-2025-resnet50` and others",
            "ResNet50 on 1 to 256 GPUs", "the same; those of FourCastNet are ours",
        )  # fmt: skip
        return
    yield (
        "models and settings", "`wattlaw examples copy mit-2022-all`",
        "six models on 2 to 424 V100", "the same",
    )  # fmt: skip
    rows = published.exponents().to_dict("records")
    kinds = {"none": "model", "W": "power cap", "MHz": "clock"}
    for kind, group in groupby(rows, lambda row: kinds[row["limit"].split()[-1]]):
        there, here = ([], [])
        for row in group:
            name = row["model"] if kind == "model" else f"{row['model']} {row['limit']}"
            there.append(f"{name} {row['published']}")
            here.append(f"{name} {row['simulated']:.2f}")
        yield (
            f"exponents by {kind}", "`wattlaw fit`, `exponents` of the report",
            ", ".join(there), ", ".join(here),
        )  # fmt: skip


def _figures(study: str, values: Mapping[str, str]) -> Iterator[Row]:
    """Return each figure with what the claims about it say, there and here."""
    for shown, names, claims in FIGURES[study]:
        figures = ", ".join(f"`{name}`" for name in names.split(", "))
        about = claims.split(", ")
        there, here = (
            "; ".join(f"`{name}`: {texts[name]}" for name in about) for texts in (FINDINGS, values)
        )
        yield shown, f"`report --template {study}`: {figures}", there, here


def _finding(claim: Claim, metrics: pd.DataFrame) -> Row:
    """Return the values of the checks of a claim, by workload or as their range."""
    here: dict[str, list[str]] = {}
    for part in claim.workloads:
        series, evidence = _NOISE.sub("", part.label).replace(", ", " "), part.evidence
        for value, limit in _BETA.findall(evidence):
            what = f"beta under {limit} less that without"
            here.setdefault(what, []).append(f"{series} {value}")
        for label, value in _CHECK.findall(_NOISE.sub("", evidence)):
            what = label.rpartition(", ")[2].strip("; ")
            what = "beta of the second less that of the first" if what == "difference" else what
            here.setdefault(what, []).append(f"{series} {value}")
    if claim.name in UTILISATION:  # repeats of it are identical, so the claim has no interval
        here = {"at 128 GPUs over 2": [*_utilisation(metrics, UTILISATION[claim.name])]}
    shown = "; ".join(f"{what}: {_shorten(values)}" for what, values in here.items())
    return claim.claim, f"`{claim.name}`", claim.criterion, FINDINGS[claim.name], shown or NOT_RUN


def _utilisation(metrics: pd.DataFrame, workloads: Sequence[str]) -> Iterator[str]:
    free = metrics[metrics["power_limit_w"].isna() & metrics["clock_limit_mhz"].isna()]
    means = free.groupby(["workload", "gpus"])["sm_util_mean"].mean()
    for name in workloads:
        yield f"{name} {means[name, 128] / means[name, 2]:.3g}"


def _shorten(values: list[str]) -> str:
    if len(values) <= _MAX_LISTED:
        return ", ".join(values)
    numbers = sorted(
        (value.split()[-1] for value in values), key=lambda text: float(text.strip("%"))
    )
    return f"{numbers[0]} to {numbers[-1]} in {len(values)} tests"


if __name__ == "__main__":
    main()
