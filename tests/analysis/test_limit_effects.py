"""What a cap or clock does to time and energy, against no limit at the same setting."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats

from wattlaw.analysis.laws.limit_effects import limit_effects, without_limits


def rows(**columns: object) -> pd.DataFrame:
    known = {"workload": "w", "gpus": 2, "clock_limit_mhz": np.nan, "energy_is": "gpu, counter"}
    known |= {"hosts": "n1", "session": 1, "slow_log": 0.0, "launcher": "slurm", "nodes": 1}
    return pd.DataFrame(columns).assign(**(known | columns))


def test_ratios_of_a_hand_worked_pair():
    table = rows(
        power_limit_w=[np.nan, 200, 100], time_s=[100.0, 102, 160], energy_j=[50.0, 44, 40]
    )
    found = limit_effects(table).set_index("limit")
    assert found.index.isna()[0]
    assert found.loc[200.0, "time_ratio"] == pytest.approx(1.02)
    assert found.loc[200.0, "speed_ratio"] == pytest.approx(1 / 1.02)
    assert found.loc[100.0, "energy_ratio"] == pytest.approx(0.8)
    assert found["reference"].isna().all()
    first = found.iloc[0]
    assert first["time_ratio"] == first["energy_ratio_low"] == first["speed_ratio_high"] == 1


@pytest.mark.parametrize("repeats", [1, 2])
def test_without_repeats_that_differ_the_interval_is_by_public_data(repeats):
    table = rows(power_limit_w=[250, 100], time_s=[1.0, 2], energy_j=[2.0, 1])
    found = limit_effects(pd.concat([table] * repeats))
    assert found["reference"].tolist() == [250, 250]
    capped = found.iloc[1]
    # A run varies by 2 %; nodes and session are those of both limits.
    half = stats.t.ppf(0.975, 2) * 0.02 * np.sqrt(2 / repeats)
    assert capped["time_ratio_high"] == pytest.approx(2 * np.exp(half))
    assert capped["energy_ratio_low"] == pytest.approx(0.5 * np.exp(-half))
    assert (capped["time_ratio"], capped["energy_ratio"]) == (2, 0.5)
    imported = limit_effects(table.assign(launcher="imported")).iloc[1]
    assert imported[["time_ratio_low", "energy_ratio_high"]].isna().all()


def test_what_two_limits_share_cancels_and_what_they_do_not_counts():
    table = rows(power_limit_w=[250, 100], time_s=[1.0, 2], energy_j=[2.0, 1])
    elsewhere, later = (table.assign(**{name: [1, 2]}) for name in ("hosts", "session"))

    def half(made: pd.DataFrame) -> float:
        found = limit_effects(made.astype({"hosts": str})).iloc[1]
        return float(np.log(found["time_ratio_high"] / found["time_ratio"]))

    for made, shares in ((later, [0.02, 0.01]), (elsewhere, [0.02, 0.01, 0.03])):
        parts = 2 * np.square(shares)
        freedom = parts.sum() ** 2 / (parts**2 / [2, 4, 4][: len(parts)]).sum()
        assert half(made) == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum()))


def test_changes_are_those_of_a_regression_on_logs_whose_noise_is_no_less_than_a_limits_own():
    dice = np.random.default_rng(1)
    limit = np.repeat([250.0, 200.0, 100.0], 4)
    time_s = 100 * (250 / limit) ** 0.3 * np.exp(dice.normal(0, 0.05, 12))
    energy_j = time_s * limit * 0.8 * np.exp(dice.normal(0, 0.02, 12))
    table = rows(power_limit_w=limit, time_s=time_s, energy_j=energy_j)
    found = limit_effects(table).set_index("limit")
    for name, values in (("time", time_s), ("energy", energy_j)):
        data = pd.DataFrame({"y": np.log(values), "limit": limit})
        model = smf.ols("y ~ C(limit, Treatment(250.0))", data).fit()
        own = data.groupby("limit")["y"].var()
        for value in (200.0, 100.0):
            change = model.params[f"C(limit, Treatment(250.0))[T.{value}]"]
            # A limit that varies more counts alone, with its three degrees of freedom and one.
            alone = [own[limit] / 4 for limit in (value, 250.0) if own[limit] > model.scale]
            shared = (2 - len(alone)) * model.scale / 4
            total = sum(alone) + shared
            freedom = total**2 / (sum(x**2 for x in alone) / 4 + shared**2 / model.df_resid)
            half = stats.t.ppf(0.975, freedom) * np.sqrt(total)
            assert found.loc[value, f"{name}_ratio_low"] == pytest.approx(np.exp(change - half))
    capped = found.loc[100.0]
    assert capped["speed_ratio_low"] == pytest.approx(1 / capped["time_ratio_high"])
    assert found["n"].tolist() == [4, 4, 4]


def test_a_run_with_a_locked_clock_is_not_uncapped():
    table = rows(power_limit_w=[np.nan, np.nan, 100], clock_limit_mhz=[np.nan, 735, np.nan],
                 time_s=[10.0, 20, 15], energy_j=[1.0, 1, 1])  # fmt: skip
    caps, clocks = limit_effects(table), limit_effects(table, "clock_limit_mhz")
    assert caps["time_ratio"].tolist() == pytest.approx([1, 1.5])
    assert clocks["time_ratio"].tolist() == pytest.approx([1, 2])


def test_energies_that_count_different_things_have_no_ratio():
    table = rows(power_limit_w=[np.nan, 200, 100, 50], time_s=[10.0, 10, 20, 40],
                 energy_j=[5.0, 4, 3, np.nan],
                 energy_is=["gpu, counter", "gpu, counter", "gpu+cpu, counter", None])  # fmt: skip
    found = limit_effects(table).set_index("limit")
    assert np.isnan(found.loc[50.0, "energy_ratio"])
    assert found.loc[50.0, "time_ratio"] == pytest.approx(4)
    assert found.loc[200.0, "energy_ratio"] == pytest.approx(0.8)
    assert np.isnan(found.loc[100.0, "energy_ratio"])
    assert found.loc[100.0, "energy_is"] == "gpu+cpu, counter; gpu, counter"
    assert found.loc[100.0, "time_ratio"] == pytest.approx(2)


def test_each_machine_keeps_runs_without_limits_or_with_the_highest():
    table = rows(hardware=["a", "a", "b", "b", "b"], power_limit_w=[np.nan, 200, 300, 300, 250],
                 clock_limit_mhz=[np.nan, np.nan, 1000, 900, 1000])  # fmt: skip
    assert without_limits(table).index.tolist() == [0]
    assert without_limits(table, ["hardware"]).index.tolist() == [0, 2]
    assert without_limits(table.iloc[1:]).index.tolist() == [2]
    assert without_limits(table.iloc[:0]).empty
