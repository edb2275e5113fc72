"""Two sets of runs compared at their common settings: ratios, intervals, labels, limits."""

import json
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import wattlaw
from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.analysis.advise.comparison import (
    EXCEEDED,
    KEPT,
    OVER_SETTINGS,
    REPEATS,
    UNKNOWN,
    Comparison,
    compare,
)
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput, Refused
from wattlaw.store.store import Store

Values = dict[int, list[float]]
POWER_W = 200.0
#: Of two stores, three settings and some repeats, the times of an epoch by GPU count.
A: Values = {1: [100.0, 101.0, 103.0], 2: [52.0, 53.5, 52.4], 4: [28.0, 27.1]}
B: Values = {1: [93.0, 95.5, 94.0], 2: [50.1, 49.0, 49.2], 4: [25.0, 25.6, 26.1]}


def made(
    times: Values, energies: Values | None = None, part: str = "gpu", window: Any = None,
    prefix: str = "a", **changes: object,
) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Return the tables of a store with these times, and these energies or a constant power."""
    runs, windows = [], []
    for gpus, values in times.items():
        for repeat, time_s in enumerate(values):
            run_id = f"{prefix}{gpus:05}{repeat:010}"
            energy_j = energies[gpus][repeat] if energies else POWER_W * time_s
            runs.append(run_row(run_id, gpus=gpus, local_batch=64 // gpus, repeat=repeat) | changes)
            energy = {f"{part}_energy_j": energy_j, "energy_source": "counter",
                      "energy_verdict": "ok"}  # fmt: skip
            windows.append(window_row(run_id, 1, duration_s=time_s, **energy) | (window or {}))
            if (window or {}).get("phase") != "steps":
                windows.append(window_row(run_id, 1, phase="evaluate", metric=0.9))
    return frames(runs, windows)


#: What tests ask for more than once.
_KEPT: dict[str, pd.DataFrame] = {}


def metrics(times: Values, *rest: Any, **changes: Any) -> pd.DataFrame:
    asked = repr((times, rest, changes))
    if asked not in _KEPT:
        _KEPT[asked] = run_metrics(*made(times, *rest, **changes))
    return _KEPT[asked].copy()


@cache
def a_and_b(*, has_joules: bool = False) -> Comparison:
    joules = {n: [195.0 * time_s + 3 * i for i, time_s in enumerate(of)] for n, of in B.items()}
    return compare(metrics(A), metrics(B, joules if has_joules else None))


def left_out(comparison: Comparison) -> str:
    (text,) = (str(each) for each in comparison.warnings if each.code == "unmatched")
    return text.partition("Left out: ")[2].rstrip(".")


def codes(comparison: Comparison) -> set[str]:
    return {warning.code for warning in comparison.warnings}


def noise(a: Values, b: Values, gpus: list[int]) -> tuple[float, float]:
    """Return the variance of the mean change of settings, and its degrees of freedom.

    Runs vary as those of all settings do, and no less than those of their setting: these count with
    their own degrees of freedom and one more.
    """
    logs = {(side, n): np.log(values) for side, of in enumerate((a, b)) for n, values in of.items()}
    freedom = sum(len(own) - 1 for own in logs.values())
    pooled = sum(own.var() * len(own) for own in logs.values()) / freedom
    asked = [logs[side, n] for side in (0, 1) for n in gpus]
    parts = [(sum(pooled / len(own) for own in asked if own.var(ddof=1) <= pooled), freedom)]
    parts += [(own.var(ddof=1) / len(own), min(len(own), freedom))
              for own in asked if own.var(ddof=1) > pooled]  # fmt: skip
    total = sum(part for part, _ in parts)
    return total / len(gpus) ** 2, total**2 / sum(part**2 / count for part, count in parts)


def test_the_noise_of_a_setting_is_pooled_over_settings():
    comparison = a_and_b()
    changes = {item.setting["gpus"]: item for item in comparison.changes
               if item.setting and item.quantity == "time"}  # fmt: skip
    for gpus, item in changes.items():
        variance, freedom = noise(A, B, [gpus])
        half = stats.t.ppf(0.975, freedom) * np.sqrt(variance)
        ratio = stats.gmean(B[gpus]) / stats.gmean(A[gpus])
        assert item.ratio == pytest.approx(ratio)
        assert item.ratio_ci == pytest.approx((ratio * np.exp(-half), ratio * np.exp(half)))
        assert (item.a, item.unit) == (pytest.approx(stats.gmean(A[gpus])), "s per epoch")
        assert (item.n_a, item.n_b, item.interval) == (len(A[gpus]), len(B[gpus]), REPEATS)
    assert sorted(changes) == [1, 2, 4]
    assert comparison.settings == 3
    pooled = comparison.pooled
    assert pooled["energy"].ratio == pytest.approx(pooled["time"].ratio)
    assert (pooled["power"].ratio, pooled["metric"].ratio) == pytest.approx((1.0, 1.0))
    assert pooled["metric"].ratio_ci is None  # all are 0.9


def test_the_pooled_change_is_the_geometric_mean_of_the_ratios():
    pooled = a_and_b().pooled["time"]
    ratios = [stats.gmean(B[gpus]) / stats.gmean(A[gpus]) for gpus in A]
    assert pooled.ratio == pytest.approx(stats.gmean(ratios))
    variance, freedom = noise(A, B, [*A])
    half = stats.t.ppf(0.975, freedom) * np.sqrt(variance)
    assert pooled.ratio_ci == pytest.approx(pooled.ratio * np.exp([-half, half]))
    assert (pooled.n_a, pooled.n_b, pooled.interval) == (8, 9, REPEATS)


def test_a_store_does_not_differ_from_itself():
    two: Values = {1: [100.0, 140.0], 2: [52.0, 60.0]}
    comparison = compare(metrics(two), metrics(two))
    assert {item.ratio_ci for item in comparison.changes if item.quantity == "time"} == {(1, 1)}
    assert "same-runs" in codes(comparison)
    # Other runs that take as long say that the change may be as large as their noise.
    again = compare(metrics(two), metrics({1: [140.0, 100.1], 2: [60.0, 52.1]}))
    assert "same-runs" not in codes(again)
    low, high = again.pooled["time"].ratio_ci
    assert low < 0.85
    assert high > 1.15


def test_days_and_nodes_that_the_sides_do_not_share_widen_a_change():
    def half(window: dict[str, object]) -> float:
        low, high = compare(metrics(A), metrics(B, window=window)).pooled["time"].ratio_ci
        return float(np.log(high / low) / 2)

    alike, later = half({}), {"start_ns": 10**17}
    for window, sds in ((later, [0.01]), (later | {"host": "other"}, [0.01, 0.03])):
        # Each side is one session, and one node; by public data they count for four.
        own = 2 * np.square(sds)
        lasting = own.sum(), own.sum() ** 2 / (own**2 / 4).sum()
        parts = np.array([noise(A, B, [*A]), lasting])
        total = parts[:, 0].sum()
        freedom = total**2 / (parts[:, 0] ** 2 / parts[:, 1]).sum()
        assert half(window) == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(total))
        assert half(window) > alike


def test_without_repeats_only_the_settings_show_scatter():
    one = {gpus: values[:1] for gpus, values in A.items()}
    other = {gpus: values[:1] for gpus, values in B.items()}
    comparison = compare(metrics(one), metrics(other))
    assert {item.ratio_ci for item in comparison.changes if item.setting} == {None}
    pooled = comparison.pooled["time"]
    logs = [np.log(other[gpus][0] / one[gpus][0]) for gpus in one]
    expected = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert pooled.ratio_ci == pytest.approx(tuple(np.exp(expected)))
    assert pooled.interval == OVER_SETTINGS
    alone = compare(metrics({1: [100.0]}), metrics({1: [90.0, 91.0]}))
    assert (alone.pooled["time"].ratio_ci, alone.pooled["time"].interval) == (None, None)


def test_machines_match_without_hardware_and_threads():
    comparison = compare(
        metrics(A, hardware="x", threads_per_worker=4),
        metrics(B, hardware="y", threads_per_worker=8),
    )
    assert comparison.of_machines
    assert comparison.settings == 3
    assert (comparison.a.hardware, comparison.b.hardware) == (("x",), ("y",))
    assert "machines" in codes(comparison)
    several = pd.concat([metrics(A, hardware="x"), metrics(A, hardware="z", prefix="z")])
    with pytest.raises(Refused, match="one hardware on each side"):
        compare(several, metrics(B, hardware="y"))
    shared = compare(several, metrics(B, hardware="x"))
    assert not shared.of_machines
    assert (shared.pooled["time"].n_a, shared.pooled["time"].n_b) == (8, 9)
    assert "unmatched" in codes(shared)


def test_settings_of_a_side_alone_are_counted_and_not_compared():
    comparison = compare(metrics(A), metrics({1: B[1]}))
    assert (comparison.settings, comparison.a.settings, comparison.b.settings) == (1, 3, 1)
    assert left_out(comparison) == "2 of A (other gpus)"
    others = pd.concat([metrics(A), metrics(A, workload="other", prefix="o")])
    assert compare(others, metrics(A)).a.settings == 6
    assert left_out(compare(metrics(A), others)) == "3 of B (other workload)"
    longer = pd.concat([metrics(A), metrics({1: A[1]}, prefix="o", precision="bf16")])
    longer = pd.concat([longer, metrics({8: [9.0]}, prefix="p", nodes=2)])
    assert left_out(compare(longer, metrics(A))) == "1 of A (other precision), " \
        "1 of A (other nodes and gpus)"  # fmt: skip
    untimed = metrics(A)
    times = [name for name in untimed if name in ("time_s", "step_time_s") or "_time_s" in name]
    untimed.loc[untimed["gpus"] == 4, [*times, "time_per_sample_s"]] = None
    assert "1 of A (no time in a unit of both)" in left_out(compare(untimed, metrics(A)))
    assert "unmatched" not in codes(a_and_b())
    with pytest.raises(Refused, match=r"same setting: 1 of A \(other gpus\), 1 of B"):
        compare(metrics({1: A[1]}), metrics({2: B[2]}))
    with pytest.raises(Refused, match="no done runs at the same setting"):
        compare(metrics(A), metrics(A, workload="other").assign(unit="sample"))
    with pytest.raises(Refused, match="B: no run is done"):
        compare(metrics(A), metrics(A).iloc[:0])


@pytest.mark.parametrize(
    ("launchers", "sources", "code"),
    [
        (("local", "slurm"), ("measured", "measured"), None),
        (("imported", "local"), ("imported", "measured"), "sources-differ"),
        (("simulated", "simulated"), ("simulated", "simulated"), "simulated"),
    ],
)
def test_the_source_of_each_side_is_stated(launchers, sources, code):
    comparison = compare(*(metrics(times, launcher=launcher)
                           for times, launcher in zip((A, B), launchers, strict=True)))  # fmt: skip
    assert (comparison.a.source, comparison.b.source) == sources
    assert codes(comparison) == ({code} if code else set())
    plain = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert (plain["a"]["source"], plain["b"]["source"]) == sources


@pytest.mark.parametrize(
    ("version", "expected"), [("2.6.0", {"releases-differ"}), ("2.5.1", set())]
)
def test_releases_of_what_trains_are_named_where_they_differ(version, expected):
    sides = [
        metrics(A, software=json.dumps({"torch": torch, "numpy": numpy}))
        for torch, numpy in (("2.5.1", "1"), (version, "2"))
    ]
    comparison = compare(*sides)
    assert codes(comparison) == expected
    assert all("torch (2.5.1, 2.6.0)" in item.text for item in comparison.warnings)


def test_simulated_runs_do_not_mix_with_measured_runs_of_a_side():
    mixed = pd.concat([metrics(A), metrics(B, launcher="simulated", prefix="b")])
    comparison = compare(mixed, metrics(B))
    assert (comparison.a.source, comparison.a.runs) == ("measured", 8)
    assert "origins-excluded" in codes(comparison)


def test_runs_that_are_on_both_sides_are_said_to_be_the_same():
    def texts(b: pd.DataFrame) -> list[str]:
        return [str(each) for each in compare(a, b).warnings if each.code == "same-runs"]

    a = metrics(A)
    (text,) = texts(a)
    assert f"A and B are the same {len(a)} runs" in text
    (text,) = texts(pd.concat([a, metrics(B, prefix="b")]))
    assert f"{len(a)} runs" in text and "nothing to compare" not in text
    assert texts(metrics(B)) == []  # a study that ran again, under the same ids


def test_energies_of_different_devices_are_not_compared():
    comparison = compare(metrics(A, part="gpu"), metrics(B, part="cpu"))
    assert {*comparison.pooled} == {"time", "gpu_hours", "metric"}
    assert "energies-differ" in codes(comparison)
    assert comparison.check("energy > +5%").verdict == UNKNOWN


def test_a_unit_that_both_sides_have_is_compared():
    steps = {"phase": "steps", "epoch": None, "samples": 640}
    b = {gpus: [6.4 * time_s for time_s in values] for gpus, values in B.items()}
    comparison = compare(metrics(A), metrics(b, window=steps))
    time = next(item for item in comparison.changes if item.setting and item.quantity == "time")
    assert time.unit == "s per sample"
    by_epoch = a_and_b().pooled["time"]
    assert comparison.pooled["time"].ratio == pytest.approx(by_epoch.ratio)


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        ("time > -20%", EXCEEDED), ("time>+0%", KEPT), ("energy < -1 %", EXCEEDED),
        ("energy < -20.5%", KEPT), ("time > -7%", UNKNOWN), ("gpu_hours < -1%", EXCEEDED),
        ("metric > 1%", UNKNOWN), ("power > 3%", KEPT), (" time < \u22121% ", EXCEEDED),
    ],
)  # fmt: skip
def test_a_limit_is_exceeded_where_the_interval_lies_beyond_it(limit, verdict):
    comparison = a_and_b(has_joules=True)
    low, high = comparison.pooled["time"].percent_ci
    assert -20 < low < -7 < high < -1
    check = comparison.check(limit)
    assert check.verdict == verdict
    assert check.is_judged == ("metric" not in limit)


@pytest.mark.parametrize(
    "limit",
    ["", "energy", "energy > 5", "energy >= 5%", "power_w > 5%", "time > five%", "time > 1e400%",
     "time > nan%", "time > 5% or so", "\x1b[31m > 5%"],
)  # fmt: skip
def test_a_limit_that_cannot_be_read_is_bad_input(limit):
    with pytest.raises(BadInput, match="expected 'energy > ") as error:
        a_and_b().check(limit)
    assert str(error.value).isprintable()


def test_the_command_fails_beyond_a_limit_only(tmp_path, capsys):
    stores = tmp_path / "before", tmp_path / "after"
    for path, times in zip(stores, (A, B), strict=True):
        write_store(path, *made(times))
    line = ["compare", *map(str, stores)]
    for words, code in (
        (["--fail-if=time > +5%", "--fail-if=metric > +1%"], 0),
        (["--fail-if=metric > +1%", "--strict"], 4),
        (["--fail-if=time > 5 percent"], 2),
    ):
        assert main([*line, *words]) == code, words
    capsys.readouterr()
    assert main([*line, "--json", "--fail-if", "time < -1%"]) == 4
    shown = json.loads(capsys.readouterr().out)
    assert [check["verdict"] for check in shown["checks"]] == [EXCEEDED]
    assert shown["changes"][0]["percent"] == pytest.approx(
        wattlaw.open(stores[0]).compare(stores[1]).pooled["time"].percent
    )


def test_the_last_two_commits_of_a_store_are_compared(tmp_path, capsys):
    store, commits = tmp_path / "store", ("1" * 40, "2" * 40, "3" * 40 + "-dirty")
    of_commit = {"x": {1: [9.0, 8.0]}, "a": A, "b": B}
    tables = [made(times, prefix=prefix) for prefix, times in of_commit.items()]
    runs, windows = zip(*tables, strict=True)
    write_store(store, pd.concat(runs), pd.concat(windows))
    assert main(["compare", str(store), "--by", "git_commit"]) == 2
    assert "0 git commits" in capsys.readouterr().err
    for folder in Store(store).folders():
        number = "xab".index(folder.run_id[0])
        moment = f"2026-01-0{number + 1}T00:00:00Z"
        text = json.loads(folder.record_path.read_text())
        text |= {"git_commit": commits[number], "started_at": moment}
        folder.record_path.write_text(json.dumps(text))
    assert main(["compare", str(store), "--by", "git_commit", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["a"]["name"], shown["b"]["name"]) == ("2" * 12, "3" * 12 + "-dirty")
    assert (shown["a"]["runs"], shown["b"]["runs"]) == (8, 9)
    expected = a_and_b().pooled["time"].percent
    assert shown["changes"][0]["percent"] == pytest.approx(expected)
    for line in ([str(store)], [str(store), str(store), "--by", "git_commit"],
                 [str(store), "--by", "hardware"]):  # fmt: skip
        assert main(["compare", *line]) == 2
