"""Simulated and published values of the two studies.

Every exponent is over the counts of the published fit; where its range is not published, over all
counts of the example. "Uncalibrated" is without the two numbers of ``mit-v100`` that were chosen to
fit published exponents; these two exponents are marked with *. Nothing is measured or random: the
numbers depend only on files of this repository. Run with ``make bench-simulator``;
``docs/simulator.md`` has the tables, which a test compares.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from math import log
from pathlib import Path

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.power_law import fit_power_law
from wattlaw.study.model import RunSpec
from wattlaw.study.plan import expand, read_study
from wattlaw_papers.published import Published, published
from wattlaw_simulator.launching.simulated_machine import Machine
from wattlaw_simulator.simulate_step import predict
from wattlaw_simulator.simulated_job import Window

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EXAMPLES = ROOT / "src" / "wattlaw" / "examples"
#: The numbers of mit-v100 that are calibrated, as they were assumed before.
ASSUMED = {"storage_gb_s": 50.0, "epoch_ms": None}
#: The workloads whose exponents without a cap chose them.
CHOSEN_ON = ("vgg16", "dimenet")
MODELS = {
    "bert-base": "BERT", "dimenet": "DimeNet", "vgg16": "VGG16", "resnet50": "ResNet50",
    "inceptionv3": "InceptionV3", "schnet": "SchNet",
}  # fmt: skip


@dataclass(frozen=True)
class Study:
    """The settings of a study's file, and the machine on which it is simulated."""

    machine: Machine
    specs: list[RunSpec]

    @classmethod
    def of(cls, name: str, hardware: str, **changed: object) -> "Study":
        """Return the first repeat of an example's study; ``changed`` are numbers of the cluster."""
        study = read_study(EXAMPLES / f"{name}.yaml")
        simulation = study.launch.simulation.model_copy(update={"hardware": hardware})
        launch = study.launch.model_copy(update={"simulation": simulation})
        machine = Machine.from_launch(launch)
        machine = replace(machine, cluster=machine.cluster.model_copy(update=changed))
        changes = {"kind": "simulated", "gpus_per_node": machine.gpus_per_node}
        study = study.model_copy(update={"launch": launch.model_copy(update=changes)})
        specs = [run.spec for run in expand(study) if run.spec.repeat == 0]
        return cls(machine, specs)

    def epochs(self, workload: str, **selected: object) -> dict[int, Window]:
        """Return the training of an epoch by GPU count; a setting without cap is the default."""
        selected = {
            "power_limit_w": None,
            "clock_limit_mhz": None,
            "dataset_fraction": 1.0,
        } | selected
        windows = {}
        for spec in self.specs:
            fields = spec.setting.to_record()
            if spec.workload.name == workload and all(fields[k] == v for k, v in selected.items()):
                windows[spec.setting.gpus] = predict(self.machine.job(spec)).train
        return dict(sorted(windows.items()))


@cache
def mit(*, calibrated: bool = True) -> Study:
    """Return the study that varied caps and clocks."""
    return Study.of("mit-2022-all", "mit-v100", **({} if calibrated else ASSUMED))


def beta(epochs: Mapping[int, Window], low: int | None = None, high: int | None = None) -> float:
    """Return the exponent of t = alpha N^-beta over the counts from low to high."""
    counts = [n for n in epochs if (low or 0) <= n <= (high or max(epochs))]
    times_s = [epochs[n].duration_s for n in counts]
    if len(counts) == 2:
        return log(times_s[0] / times_s[1]) / log(counts[1] / counts[0])
    return fit_power_law(counts, times_s).beta


def speedup(epochs: Mapping[int, Window], high: int | None = None) -> float:
    """Return the time at the least count over that at another, by default the largest."""
    return epochs[min(epochs)].duration_s / epochs[high or max(epochs)].duration_s


def main() -> None:
    """Predict, print the tables, and write them as JSON."""
    tables = {"exponents": exponents(), "findings": findings(), "energy": energies()}
    for name, table in tables.items():
        print(f"\n{name}\n\n{markdown(table)}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"published-{datetime.now(UTC):%Y-%m}.json"
    content = {name: table.to_dict("records") for name, table in tables.items()}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def exponents() -> pd.DataFrame:
    """Return each published exponent with the simulated ones."""
    rows = []
    for value in published("mit-2022", "beta"):
        limits = {"power_limit_w": value.power_limit_w, "clock_limit_mhz": value.clock_limit_mhz}
        with_, without = (
            mit(calibrated=calibrated).epochs(str(value.workload), **limits)
            for calibrated in (True, False)
        )
        simulated = beta(with_, value.gpus_min, value.gpus_max)
        chosen = value.workload in CHOSEN_ON and not any(limits.values())
        counts = f"{value.gpus_min} to {value.gpus_max}" if value.gpus_max else "unknown"
        rows.append(
            {
                "model": value.model,
                "limit": limit_of(value),
                "GPUs": counts,
                "published": f"{value.value:.2f}{'*' * chosen}",
                "uncalibrated": round(beta(without, value.gpus_min, value.gpus_max), 2),
                "simulated": round(simulated, 2),
                "difference": round(simulated - value.value, 2) + 0.0,  # no negative zero
                "to 64 GPUs": round(beta(with_, high=64), 2),
            }
        )
    return pd.DataFrame(rows)


def findings() -> pd.DataFrame:
    """Return the other published findings with their simulated values."""
    with_, without = (dict(_of_mit(mit(calibrated=is_so))) for is_so in (True, False))
    rows = [(*key, without[key], value) for key, value in with_.items()]
    for hardware in ("kit-a100", "kit-h100"):
        rows += [(*key, value, value) for key, value in _of_kit(hardware)]
    return pd.DataFrame(rows, columns=["finding", "published", "uncalibrated", "simulated"])


def _of_mit(study: Study) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield findings of Frey et al. 2022 with what they published, and the simulated value."""
    free = {
        name: study.epochs(name) for name in dict.fromkeys(s.workload.name for s in study.specs)
    }
    betas = {name: beta(epochs) for name, epochs in free.items()}
    cnns = ("resnet50", "vgg16", "inceptionv3")
    yield (
        ("order of the exponents", "BERT, DimeNet, VGG16, ResNet50, InceptionV3, SchNet"),
        ", ".join(MODELS[name] for name in sorted(betas, key=betas.__getitem__, reverse=True)),
    )
    spread = max(betas[name] for name in cnns) - min(betas[name] for name in cnns)
    yield ("exponents of the convolutional networks differ by", "at most 0.20"), f"{spread:.2f}"
    for name, high, said in (
        ("bert-base", 128, "more than 30"), ("bert-base", 424, "76"), ("dimenet", 416, "60"),
        ("resnet50", 128, "5 to 6, 8.7 by its exponent, more than 20 by its energy"),
        ("vgg16", 128, "5 to 6, 14 by its exponent"),
        ("inceptionv3", 128, "5 to 6, 6.2 by its exponent"),
    ):  # fmt: skip
        yield (
            (f"speedup of {MODELS[name]} from 2 to {high} GPUs", said),
            f"{speedup(free[name], high):.1f}",
        )
    ratio = [free["vgg16"][n].duration_s / free["resnet50"][n].duration_s for n in (2, 256)]
    yield (
        ("time of VGG16 over that of ResNet50 on 2 and 256 GPUs", "below 1 beyond 100"),
        "{:.2f}, {:.2f}".format(*ratio),
    )
    epochs = free["schnet"]
    yield (
        ("exponent of SchNet up to 64 GPUs and beyond", "leaves its law beyond 64"),
        f"{beta(epochs, high=64):.2f}, {beta(epochs, 64):.2f}",
    )
    for name, said in (("bert-base", "stays"), ("dimenet", "falls"), ("schnet", "falls")):
        values = [free[name][n].sm_util for n in (2, 128)]
        yield (
            (f"SM utilisation of {MODELS[name]} on 2 and 128 GPUs", said),
            "{:.2f}, {:.2f}".format(*values),
        )
    energy = free["dimenet"]
    yield (
        ("energy of an epoch of DimeNet, largest count over 2 GPUs", "more than 3"),
        f"{energy[max(energy)].gpu_energy_j / energy[2].gpu_energy_j:.1f}",
    )
    for cap, time_said, energy_said in (
        (200.0, "1 (no loss of speed)", "0.9 or less"), (100.0, "clearly above 1", "")
    ):  # fmt: skip
        ratios = [
            (
                _mean_ratio(study, name, cap, "duration_s"),
                _mean_ratio(study, name, cap, "gpu_energy_j"),
            )
            for name in free
        ]
        times, energies_ = zip(*ratios, strict=True)
        yield (
            (f"time at {cap:g} W over that without a cap, by model", time_said),
            f"{min(times):.2f} to {max(times):.2f}",
        )
        if energy_said:
            yield (
                (f"energy at {cap:g} W over that without a cap, by model", energy_said),
                f"{min(energies_):.2f} to {max(energies_):.2f}",
            )


def _mean_ratio(study: Study, workload: str, cap: float, quantity: str) -> float:
    """Return the geometric mean over the counts of a quantity under a cap over that without."""
    free, capped = study.epochs(workload), study.epochs(workload, power_limit_w=cap)
    logs = [log(getattr(capped[n], quantity) / getattr(free[n], quantity)) for n in free]
    return float(np.exp(np.mean(logs)))


def _of_kit(hardware: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield findings of Huber et al. 2025 with what they published, and the simulated value."""
    fourcastnet = Study.of("kit-2025-fourcastnet-pretrain", hardware)
    epochs = fourcastnet.epochs("fourcastnet", global_batch=64)
    yield (
        (f"exponent of FourCastNet up to 4 times the GPUs and beyond, {hardware}", "near 1, less"),
        f"{beta(epochs, high=16):.2f}, {beta(epochs, 16):.2f}",
    )
    for batch in (256, 8192):
        resnet = Study.of("kit-2025-resnet50", hardware).epochs("resnet50", global_batch=batch)
        yield (
            (f"exponent of ResNet50 at global batch {batch}, {hardware}", "near 1"),
            f"{beta(resnet):.2f}",
        )


def energies() -> pd.DataFrame:
    """Return time and energy at 200 W and 100 W relative to no cap, at 2 and 128 GPUs."""
    rows = []
    for name, model in MODELS.items():
        for gpus in (2, 128):
            free = mit().epochs(name)[gpus]
            row: dict[str, object] = {
                "model": model,
                "GPUs": gpus,
                "W per GPU": round(free.gpu_power_w),
            }
            for cap in (200.0, 100.0):
                capped = mit().epochs(name, power_limit_w=cap)[gpus]
                row[f"time at {cap:g} W"] = round(capped.duration_s / free.duration_s, 3)
                row[f"energy at {cap:g} W"] = round(capped.gpu_energy_j / free.gpu_energy_j, 3)
            rows.append(row)
    return pd.DataFrame(rows)


def limit_of(value: Published) -> str:
    """Return a limit as text."""
    if value.power_limit_w:
        return f"{value.power_limit_w:g} W"
    return f"{value.clock_limit_mhz:g} MHz" if value.clock_limit_mhz else "none"


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    rows = [table.columns.tolist(), ["---"] * len(table.columns)]
    rows += [[cell(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def cell(value: object) -> str:
    """Return a cell of a table as text."""
    return (
        f"{value:.3f}".rstrip("0").rstrip(".")
        if isinstance(value, float | np.floating)
        else str(value)
    )


if __name__ == "__main__":
    main()
