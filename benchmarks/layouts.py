"""How well time and memory of parallel layouts are predicted on public measurements.

    python benchmarks/layouts.py [--seeds 5]

Data are read from the folder that ``WATTLAW_PUBLIC_DATA`` names (docs/benchmarks.md). Priors were
chosen with the layouts of a 3B model on H100 (nanotron) and memory of BigScience's runs in view;
Megatron-DeepSpeed on A100 (vtrain), and memory of torchtitan and InternLM, report.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from prediction_data import FOLDER
from wattlaw.analysis.advise.known_throughput import comparable_rows, nearest_runs, values_of
from wattlaw.analysis.advise.layout_effects import LayoutEffects, Measured
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.predict.intervals import LEVEL, quantiles
from wattlaw.analysis.predict.job import jobs_of
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.parallel_step import Parallel
from wattlaw.analysis.predict.peak_memory import Peak, learn
from wattlaw.analysis.predict.posterior import fit
from wattlaw.api.known_measurements import read_known
from wattlaw.store.store import Store
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

#: "llama-like 3B L28 h3072 a32 f8192 v131072" of the table.
_3B = Network(layers=28, hidden=3072, heads=32, ffn=8192, vocabulary=131072, sequence=4096,
              tied=True)  # fmt: skip
_H100_GIB = 79.0


def _setting(row: Any, **values: Any) -> Setting:
    local = row.micro_batch * row.grad_acc * row.dp / row.gpus
    sharding = {"zero1": "zero1"}.get(row.zero_or_fsdp, "none")
    return Setting.packed(
        int(row.gpus), int(row.gpus_per_node), local_batch=local, sharding=sharding,
        gradient_accumulation=int(row.grad_acc), tp=int(row.tp), pp=int(row.pp), **values,
    )  # fmt: skip


def vtrain(table: pd.DataFrame) -> Iterator[Observation]:
    for row in table[table["source"] == "vtrain_single"].itertuples():
        layers, hidden, heads = map(int, re.findall(r"\d+", str(row.model)))
        network = Network(layers=layers, hidden=hidden, heads=heads, vocabulary=51200,
                          sequence=1024, gated=False, tied=True, biases=True,
                          learned_positions=True)  # fmt: skip
        setting = _setting(row, precision="fp16", checkpointing="full")
        yield Observation(setting, float(row.step_time_s), network=network)  # type: ignore[arg-type]


def nanotron(table: pd.DataFrame) -> Iterator[tuple[Setting, Any]]:
    for row in table[table["source"].str.startswith("nanotron")].itertuples():
        yield _setting(row, precision="bf16", sequence_parallel=row.tp > 1), row


def _draws(posterior: Any, settings: Sequence[Setting], networks: Sequence[Any]) -> np.ndarray:
    return np.asarray(posterior.times_s(Parallel.of(settings, networks)))


def _line(name: str, draws: np.ndarray, truth: np.ndarray) -> None:
    error = np.abs(np.log(np.median(draws, axis=0) / truth))
    low, _, high = quantiles(draws, LEVEL)
    inside = ((low < truth) & (truth < high)).mean()
    print(f"{name:34s} n {truth.size:5d}  median {100 * np.median(error):5.1f} %  "
          f"p90 {100 * np.quantile(error, 0.9):5.0f} %  coverage {inside:.2f}  "
          f"high/low {np.median(high / low):.2f}", flush=True)  # fmt: skip


def one_node(runs: Sequence[Observation], seeds: int) -> None:
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(runs))
        rest = [runs[index] for index in order[72:]]
        posterior = fit([runs[index] for index in order[:72]], seed=seed)
        draws = _draws(posterior, [run.setting for run in rest], [run.network for run in rest])
        truth = np.array([run.step_time_s for run in rest])
        _line(f"A100, 72 of {len(runs)} runs, seed {seed}", draws, truth)


def more_nodes(rows: Sequence[tuple[Setting, Any]], seeds: int) -> None:
    done = [(setting, row.step_time_s) for setting, row in rows if row.step_time_s > 0]
    few = [
        Observation(setting, time, network=_3B)
        for setting, time in done
        if (setting.nodes or 1) <= 4
    ]
    for seed in range(seeds):
        posterior = fit(few, seed=seed)
        for nodes in (8, 16, 32, 64):
            there = [(setting, time) for setting, time in done if setting.nodes == nodes]
            truth = np.array([time for _, time in there])
            draws = _draws(posterior, [setting for setting, _ in there], [_3B] * len(there))
            _line(f"3B, 1-4 nodes -> {nodes}, seed {seed}", draws, truth)
            picked = truth[np.median(draws, axis=0).argmin()]
            print(f"{'':34s} regret of the pick {100 * (picked / truth.min() - 1):.0f} %")


def memory(rows: Sequence[tuple[Setting, Any]], seeds: int) -> None:
    peaks = [
        Peak(setting, _3B, _H100_GIB, row.memory_gib if row.memory_gib > 0 else None,
             row.status == "ok")
        for setting, row in rows if setting.pp <= _3B.layers
    ]  # fmt: skip
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(peaks))
        rest = [peaks[index] for index in order[60:]]
        model = learn([peaks[index] for index in order[:60]], seed)
        settings, networks = [item.setting for item in rest], [_3B] * len(rest)
        draws = model.peaks_gib(settings, networks)
        known = np.array([item.peak_gib is not None for item in rest])
        truth = np.array([item.peak_gib for item in rest if item.peak_gib is not None])
        _line(f"3B, peak of 60 runs, seed {seed}", draws[:, known], truth)
        chance = (draws < _H100_GIB).mean(0)
        fitted = np.array([item.fitted for item in rest])
        for name, called in (("at least 90 %", chance >= 0.9), ("below 10 %", chance < 0.1)):
            print(f"{'':34s} called {name} sure to fit: {called.sum()}, "
                  f"of which fitted {100 * fitted[called].mean():.0f} %")  # fmt: skip


_KEYS = ("model", "gpus", "global_batch", "tp", "pp", "micro_batch", "zero_or_fsdp")
_SETTINGS = {"tp": "tp", "pp": "pp", "micro_batch": "micro_batch", "zero_or_fsdp": "sharding"}


def explained(table: pd.DataFrame, jobs: int, seeds: int, *, chosen: bool) -> None:
    """Of jobs at least 20 % below the best, whether the setting is named whose change alone brings
    most in the measured rows, or one that brings at least 90 % of that.

    Held out are the job with all rows that differ in one setting only (``pairs``), or all of its
    model and number of GPUs (``series``).
    """
    known, _ = read_known(FOLDER / "parallel_layouts.csv")
    known.index -= 2  # the first row is on line 2
    for source in ("nanotron-ultrascale-playbook", "vtrain_single"):
        rows = table[(table["source"] == source) & (table["tokens_per_s_per_gpu"] > 0)]
        models = sorted(rows["model"].unique())
        half = (
            rows["gpus"].isin([8, 32, 128]) if len(models) == 1 else rows["model"].isin(models[::2])
        )
        texts = rows[list(_KEYS)].fillna("").astype(str)
        speed = np.log(rows["tokens_per_s_per_gpu"])
        best = speed.groupby([texts[name] for name in _KEYS[:3]]).transform("max")
        gains = pd.DataFrame(index=rows.index)
        for name, setting in _SETTINGS.items():
            alike = speed.groupby([texts[key] for key in _KEYS if key != name])
            gains[setting] = (alike.transform("max") - speed).where(alike.transform("size") > 1)
        is_job = (best - speed > np.log(1.25)) & (gains.max(axis=1) > np.log(1.15))
        of_half = rows.index[is_job & (half if chosen else ~half)]
        own = gains.loc[of_half]
        usual = own.ge(0.9 * own.max(axis=1), axis=0).mean().sort_values()
        print(f"{source}: always {usual.index[-1]} is right for {100 * usual.iloc[-1]:.0f} %")
        for held_out in ("pairs", "series"):
            found: list[Answer] = []
            for seed in range(seeds):
                for index in np.random.default_rng(seed).permutation(of_half)[:jobs]:
                    differing = (texts != texts.loc[index]).sum(axis=1)
                    same = (texts[["model", "gpus"]] == texts.loc[index, ["model", "gpus"]]).all(
                        axis=1
                    )
                    out = rows.index[differing <= 1 if held_out == "pairs" else same]
                    found.append(
                        _answer(
                            known.loc[index],
                            known.drop(index=out, errors="ignore"),
                            gains.loc[index],
                        )
                    )
            found = [item for item in found if item.right is not None]
            right = np.array([bool(item.right) for item in found])
            named = np.array([item.named for item in found])
            print(f"{source:30s} {held_out:7s} jobs {right.size:4d}  likeliest right "
                  f"{100 * right.mean():.0f} %; named {100 * named.mean():.0f} %, of which right "
                  f"{100 * right[named].mean():.0f} %", flush=True)  # fmt: skip


class Answer(NamedTuple):
    right: bool | None  # None: the table has no row that differs in this setting only
    named: bool


def _answer(row: Any, table: pd.DataFrame, gains: pd.Series) -> Answer:
    if "3B" in row["model"]:
        network = _3B
    else:
        layers, hidden, heads = map(int, re.findall(r"\d+", row["model"]))
        network = Network(layers=layers, hidden=hidden, heads=heads, vocabulary=51200,
                          sequence=1024, gated=False, tied=True)  # fmt: skip
    rate = row["tokens_per_s_per_gpu"] * network.flops_per_token
    setting = row["setting"]
    job = Measured(setting, network, network.parameters, rate, "")
    known, _ = comparable_rows(job, row["hardware"], table)
    learned = nearest_runs(known, setting.gpus)
    causes = LayoutEffects(learned).causes(job, values_of(known))
    if not causes:
        return Answer(right=False, named=False)
    first = causes[0]
    gain = gains.get(first.setting, np.nan)
    right = None if np.isnan(gain) else bool(gain >= 0.9 * gains.max())
    return Answer(right, first.is_clear)


def of_store(store: Path, seeds: int) -> None:
    """Of settings that were measured here (``gpt_layouts.yaml``), half predict the others; each
    run is compared, as are the repeats of a setting with each other."""
    tables = Store(store)
    runs = run_metrics(tables.pandas("runs"), tables.pandas("epochs"))
    (job,) = jobs_of(runs, str(runs["workload"].iloc[0]))
    by_setting: dict[Setting, list[Observation]] = {}
    for run in job.observations:
        by_setting.setdefault(run.setting, []).append(run)
    cells = [*by_setting.values()]
    logs = (np.log([run.step_time_s for run in cell]) for cell in cells if len(cell) > 1)
    apart = 100 * np.median([np.exp(np.ptp(values)) - 1 for values in logs])
    print(f"repeats of a setting differ by a median of {apart:.0f} %")
    all_draws, all_truths = list[np.ndarray](), list[np.ndarray]()
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(cells))
        known = [run for index in order[: len(cells) // 2] for run in cells[index]]
        rest = [run for index in order[len(cells) // 2 :] for run in cells[index]]
        _, times_s, _ = fit(known, seed=seed).runs([run.setting for run in rest])
        all_draws.append(times_s)
        all_truths.append(np.array([run.step_time_s for run in rest]))
        _line(f"{len(cells) // 2} of {len(cells)} settings, seed {seed}", all_draws[-1],
              all_truths[-1])  # fmt: skip
    _line("together", np.hstack(all_draws), np.hstack(all_truths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--explain", choices=["chosen", "others"], help="known measurements alone")
    parser.add_argument("--store", type=Path, help="runs of gpt_layouts.yaml alone")
    given = parser.parse_args()
    seeds = given.seeds
    if given.store is not None:
        of_store(given.store, seeds)
        return
    table = pd.read_csv(FOLDER / "parallel_layouts.csv")
    if given.explain:
        explained(table, 60, seeds, chosen=given.explain == "chosen")
        return
    one_node(list(vtrain(table)), seeds)
    rows = list(nanotron(table))
    more_nodes(rows, seeds)
    memory(rows, seeds)


if __name__ == "__main__":
    main()
