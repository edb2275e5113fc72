"""Power laws against statsmodels called directly, exact laws, real series, and refusals."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given
from hypothesis import strategies as st

from conftest import wattlaw
from wattlaw.analysis.power_law import fit_groups, fit_power_law
from wattlaw.cli.main import main
from wattlaw.errors import BadInput, Refused

REAL = Path(__file__).parents[1].parent / "shared" / "data" / "scaling_series.csv"
KEYS = {
    "group", "law", "n", "alpha", "beta", "beta_se", "beta_ci", "r2", "p_value", "x_min", "x_max",
}  # fmt: skip


@pytest.fixture
def real() -> Path:
    if not REAL.exists():
        pytest.skip(f"{REAL} is not there: other people's measurements are not in the repository")
    return REAL


def random_table(seed: int) -> pd.DataFrame:
    dice = np.random.default_rng(seed)
    x = dice.choice([1, 2, 4, 8, 16, 64, 424], size=dice.integers(6, 60)).astype(float)
    x[:3] = 1, 2, 4
    y = dice.uniform(1, 1e4) * x ** -dice.uniform(-0.2, 1.1) * np.exp(dice.normal(0, 0.1, x.size))
    return pd.DataFrame({"n": x, "t": y})


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_statsmodels_called_directly(seed):
    table = random_table(seed)
    law = fit_power_law(table["n"], table["t"])
    direct = smf.ols("np.log(t) ~ np.log(n)", table).fit()
    low, high = direct.conf_int().loc["np.log(n)"]
    expected = [
        np.exp(direct.params["Intercept"]),
        -direct.params["np.log(n)"],
        direct.bse["np.log(n)"],
        -high,
        -low,
        direct.rsquared,
        direct.pvalues["np.log(n)"],
    ]
    found = [law.alpha, law.beta, law.beta_se, *law.beta_ci, law.r2, law.p_value]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    at = [1.0, 3.0, 424.0]
    frame = direct.get_prediction(pd.DataFrame({"n": at})).summary_frame(0.05)
    band = law.predict(at)
    assert band["low"].to_numpy() == pytest.approx(np.exp(frame["mean_ci_lower"]), rel=1e-9)
    assert band["high"].to_numpy() == pytest.approx(np.exp(frame["mean_ci_upper"]), rel=1e-9)


def test_a_group_that_is_a_date_is_told_as_text(tmp_path, capsys):
    table = pd.DataFrame(
        {"gpus": [1, 2, 4], "t": [8.0, 4.1, 2.0], "day": pd.to_datetime(["2026-11-21"] * 3)}
    )
    table.to_parquet(tmp_path / "t.parquet")
    line = ["fit", str(tmp_path / "t.parquet"), "--y", "t", "--by", "day", "--json"]
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)[0]["group"] == {"day": "2026-11-21T00:00:00"}


def test_the_command_line_gives_the_same_numbers_as_statsmodels(tmp_path):
    table = pd.concat([random_table(seed).assign(s=seed) for seed in range(20)])
    path = tmp_path / "table.csv"
    table.to_csv(path, index=False)
    found = wattlaw("fit", path, "--x", "n", "--y", "t", "--by", "s", "--json")
    laws = json.loads(found.stdout)
    assert [law["group"] for law in laws] == [{"s": seed} for seed in range(20)]
    for law in laws:
        assert set(law) == KEYS
        mine = table[table["s"] == law["group"]["s"]]
        direct = smf.ols("np.log(t) ~ np.log(n)", mine).fit()
        assert law["beta"] == pytest.approx(-direct.params["np.log(n)"], rel=1e-9, abs=1e-9)
        assert law["beta_se"] == pytest.approx(direct.bse["np.log(n)"], rel=1e-9)
        assert (law["x_min"], law["x_max"]) == (mine["n"].min(), mine["n"].max())


several = st.lists(st.integers(1, 500), min_size=3, unique=True)


@given(st.floats(1e-3, 1e6), st.floats(-1, 2), several)
def test_an_exact_law_is_found_again(alpha, beta, counts):
    law = fit_power_law(counts, alpha * np.array(counts, float) ** -beta)
    assert law.beta == pytest.approx(beta, abs=1e-6)
    assert law.alpha == pytest.approx(alpha, rel=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ([], [], "0 distinct"),
        ([1, 2], [2.0, 1.0], "2 distinct worker counts; a law needs at least 3"),
        ([2, 2, 2, 2], [1.0, 2.0, 3.0, 4.0], "1 distinct"),
        ([1, 2, np.nan], [3.0, 2.0, 1.0], "2 distinct"),
        ([1, 2, 4], [3.0, np.nan, 1.0], "2 distinct"),
        ([0, 1, 2], [3.0, 2.0, 1.0], "1 of 3 rows"),
        ([1, 2, 4], [3.0, 2.0, 0.0], "above 0"),
        ([1, 2, 4], [3.0, -2.0, 1.0], "above 0"),
        ([1, 2, 4], [3.0, np.inf, 1.0], "1 of 3 rows"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(x, y, says):
    with pytest.raises(Refused, match=says):
        fit_power_law(x, y)


def test_a_constant_time_has_no_r_squared_and_is_no_gain():
    law = fit_power_law([1, 2, 4, 8], [5.0] * 4)
    assert law.beta == pytest.approx(0)
    assert law.r2 is None
    assert law.p_value is None
    json.dumps(law.as_json(), allow_nan=False)


def test_missing_group_values_are_a_group_and_refusals_carry_their_group():
    table = pd.DataFrame(
        {"cap": [None] * 3 + [100.0] * 2, "n": [1, 2, 4, 1, 2], "t": [4.0, 2.1, 1.0, 9.0, 5.0]}
    )
    fits = fit_groups(table, "n", "t", ["cap"])
    assert [group for group, _ in fits.laws] == [{"cap": None}]
    assert fits.refusals[0][0] == {"cap": 100.0}


def test_unknown_and_wordy_columns_are_named():
    table = pd.DataFrame({"n": [1, 2, 4], "t": ["a", "b", "c"]})
    with pytest.raises(BadInput, match="no column 'gpus'; allowed: 'n', 't'"):
        fit_groups(table, "gpus", "t", [])
    with pytest.raises(BadInput, match="'t' is not numeric"):
        fit_groups(table, "n", "t", [])


def test_the_published_series_give_one_law_each(real):
    found = wattlaw("fit", real, "--x", "gpus", "--y", "value", "--by", "family,series", "--json")
    assert found.returncode == 0
    laws = json.loads(found.stdout)
    assert len(laws) == 116
    assert len({tuple(law["group"].values()) for law in laws}) == 116
    assert found.stderr == ""


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("two.csv", "n,t\n1,2\n2,1\n", "2 distinct"),
        ("none.csv", "n,t\n", "no rows"),
        ("empty.csv", "", "not a CSV"),
        ("words.csv", "n,t\n1,a\n", "not numeric"),
        ("other.csv", "a,b\n1,2\n", "no column 'n'; allowed: 'a', 'b'"),
        ("bad.parquet", "PAR1", "not a CSV or Parquet"),
    ],
)
def test_a_table_that_allows_no_law_is_told_in_one_line(tmp_path, capsys, name, content, says):
    path = tmp_path / name
    path.write_text(content)
    assert main(["fit", str(path), "--x", "n", "--y", "t"]) == 2
    shown = capsys.readouterr()
    assert len(shown.err.splitlines()) == 1
    assert says in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("gpus,t\n1,8\n2,x\n4,2\n", [], "t.csv: column 't' is not numeric: row 1 is 'x'"),
        ("gpus,t\n1,8\n2,4\n4,2\n", ["--y", "gpus"], "x and y are both 'gpus'"),
        ("gpus, t\n1,8\n2,4\n4,2\n", [], "t.csv: no column 't'; allowed: 'gpus', ' t'"),
    ],
)
def test_a_table_that_cannot_be_fitted_is_named_with_the_place(
    tmp_path, capsys, table, options, said
):
    (tmp_path / "t.csv").write_text(table)
    assert main(["fit", str(tmp_path / "t.csv"), "--y", "t", *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


def test_rows_without_a_value_are_left_out_and_counted(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("gpus,t\n1,8\n2,\n4,2\n8,1\n")
    assert main(["fit", str(tmp_path / "t.csv"), "--y", "t", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)[0]["n"] == 3
    assert "1 of 4 rows have no gpus or no t and are left out" in shown.err


def test_huge_and_tiny_values_give_no_warning(tmp_path, capsys, recwarn):
    (tmp_path / "t.csv").write_text("gpus,t\n1,1e308\n2,1e-308\n4,1e308\n")
    main(["fit", str(tmp_path / "t.csv"), "--y", "t", "--json"])
    assert capsys.readouterr().err == ""
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]
