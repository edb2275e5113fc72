"""Statistics of telemetry: against numpy over the samples that count, and where files are odd."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_runs import made_record, made_spec
from made_tables import window_row
from wattlaw.common.errors import BadInput
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.statistics import joint_utilisation, statistics
from wattlaw.store.store import Store
from wattlaw.study.model import WorkloadSpec
from wattlaw.study.setting import Setting

RUN = "0123456789abcdef"
S = 10**9
T0 = 1_700_000_000 * S


def add_run(
    store: Store, windows: list[dict], samples: list[dict], run_id: str = RUN, status: str = "done"
) -> None:
    spec = made_spec(Setting(gpus=1), workload=WorkloadSpec(name="w"))
    store.create()
    record = made_record(run_id, spec, status=status)
    store.folder(run_id).write(record, durable=False)
    store.folder(run_id).write_tables(
        pa.Table.from_pylist([window_row(run_id, 0) | one for one in windows], schema=EPOCHS),
        pa.Table.from_pylist([{"run_id": run_id} | one for one in samples], schema=TELEMETRY),
    )


def window(start_s: float, duration_s: float, **changes: object) -> dict:
    return {"start_ns": T0 + round(start_s * S), "duration_s": duration_s} | changes


def sample(at_s: float, device: str = "GPU-0", host: str = "a", **values: object) -> dict:
    known = {"sm_util": 0.5, "mem_util": 0.25, "power_w": 100.0, "sm_clock_mhz": 1000.0,
             "temperature_c": 50.0}  # fmt: skip
    row = {"host": host, "device": device, "kind": "gpu", "t_ns": T0 + round(at_s * S)}
    return row | known | values


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def of_run(table: pd.DataFrame) -> pd.Series:
    (row,) = table[table["part"] == "run"].to_dict("records")
    return pd.Series(row)


def test_only_samples_of_training_count_that_is_neither_warm_up_nor_interrupted(store):
    windows = [
        window(0, 10, warmup=True),
        window(10, 10),
        window(20, 10, phase="evaluate"),
        window(30, 10, interrupted=False),
        window(45, 10, interrupted=True),
    ]
    samples = [sample(at, power_w=float(at)) for at in range(-5, 60)]
    samples += [sample(15, kind="cpu", device="cpu", power_w=1e6), sample(15, host="b")]
    add_run(store, windows, samples)
    row = of_run(statistics(store))
    counted = np.array([*range(10, 21), *range(30, 41)], float)
    assert row["samples"] == row["power_n"] == len(counted)
    assert row["power_mean_w"] == pytest.approx(counted.mean(), rel=1e-12)
    assert row["power_sd_w"] == pytest.approx(counted.std(), rel=1e-12)
    assert (row["power_min_w"], row["power_max_w"]) == (10.0, 40.0)


def test_both_ends_of_a_window_belong_to_it_to_the_nanosecond(store):
    edges = [T0 + 10 * S - 1, T0 + 10 * S, T0 + 20 * S, T0 + 20 * S + 1]
    add_run(store, [window(10, 10)], [sample(0) | {"t_ns": at} for at in edges])
    assert of_run(statistics(store))["samples"] == 2


VALUES = st.one_of(st.none(), st.floats(0, 1), st.just(float("nan")), st.just(float("inf")))
SAMPLES = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(0, 40), VALUES, VALUES), min_size=1, max_size=40
)


@settings(max_examples=8)
@given(SAMPLES)
def test_statistics_are_those_of_numpy_over_all_samples_of_a_run(tmp_path_factory, drawn):
    store = Store(tmp_path_factory.mktemp("stores") / "store")
    rows = [sample(at, device, sm_util=sm, mem_util=mem) for device, at, sm, mem in drawn]
    add_run(store, [window(0, 10), window(20, 10)], rows)
    frame = pd.DataFrame(rows).astype({"sm_util": float, "mem_util": float})
    at_ns = frame["t_ns"] - T0
    frame = frame[at_ns.between(0, 10 * S) | at_ns.between(20 * S, 30 * S)]
    table = statistics(store)
    assert (table["part"] == "gpu").sum() == frame["device"].nunique()
    if frame.empty:
        assert table.empty
        return
    for (_, row), expected in [
        *zip(table[table["part"] == "run"].iterrows(), [frame], strict=True),
        *zip(table[table["part"] == "gpu"].iterrows(),
             (one for _, one in frame.groupby("device")), strict=True),
    ]:  # fmt: skip
        assert row["samples"] == len(expected)
        assert row["gpus"] == expected["device"].nunique()
        pairs = expected[["sm_util", "mem_util"]].to_numpy()
        pairs = pairs[np.isfinite(pairs).all(axis=1)]
        for name in ("sm_util", "mem_util"):
            known = expected[name].to_numpy()
            known = known[np.isfinite(known)]
            assert row[f"{name}_n"] == len(known)
            if not len(known):
                assert np.isnan(row[f"{name}_mean"])
                assert np.isnan(row[f"{name}_cv"])
                continue
            assert row[f"{name}_mean"] == pytest.approx(known.mean(), rel=1e-9, abs=1e-12)
            assert row[f"{name}_sd"] == pytest.approx(known.std(), rel=1e-6, abs=1e-9)
            assert row[f"{name}_min"] == known.min()
            assert row[f"{name}_max"] == known.max()
            if known.mean() > 1e-6:
                cv = known.std() / known.mean()
                assert row[f"{name}_cv"] == pytest.approx(cv, rel=1e-6, abs=1e-8)
        if len(pairs) > 1 and (pairs.std(axis=0) > 1e-3).all():
            found = np.corrcoef(pairs.T)[0, 1]
            assert row["utilisation_correlation"] == pytest.approx(found, abs=1e-6)


def test_constant_values_have_no_correlation_and_zeros_no_variation(store):
    rows = [sample(at, sm_util=0.0, mem_util=at / 10) for at in range(10)]
    rows += [sample(at, "GPU-1", power_w=None) for at in range(10)]
    add_run(store, [window(0, 10)], rows)
    table = statistics(store).set_index("device")
    assert np.isnan(table.loc["GPU-0", "sm_util_cv"])
    assert table.loc["GPU-1", "sm_util_cv"] == 0.0
    assert table.loc[["GPU-0", "GPU-1"], "utilisation_correlation"].isna().all()
    assert table.loc["GPU-1", "power_n"] == 0
    assert np.isnan(table.loc["GPU-1", "power_mean_w"])


def test_runs_without_gpu_samples_or_not_done_have_no_row(store):
    empty = Store(store.path.parent / "empty")
    empty.create()
    assert statistics(empty).empty
    add_run(store, [window(0, 10)], [sample(5, kind="cpu")])
    add_run(store, [window(0, 10)], [sample(5)], "f" * 16, status="failed")
    assert len(statistics(store)) == 0
    assert len(joint_utilisation(store)) == 0
    add_run(store, [window(0, 10)], [sample(5)], "e" * 16)
    assert set(statistics(store)["run_id"]) == {"e" * 16}
    assert list(statistics(store).columns) == list(statistics(empty).columns)


def test_joint_utilisation_is_the_histogram_of_numpy(store):
    dice = np.random.default_rng(1)
    pairs = np.vstack([dice.uniform(0, 1, (300, 2)), [[1, 1], [0, 0], [1, 0.5]]])
    rows = [sample(at / 40, sm_util=sm, mem_util=mem) for at, (sm, mem) in enumerate(pairs)]
    rows += [sample(3, sm_util=None), sample(4, mem_util=float("nan")), sample(99)]
    add_run(store, [window(0, 10)], rows)
    add_run(store, [window(0, 10)], [sample(1)], "e" * 16)
    found = joint_utilisation(store, [RUN], bins=4)
    expected, _, _ = np.histogram2d(*pairs.T, bins=4, range=[[0, 1], [0, 1]])
    counts = np.zeros((4, 4))
    counts[found["sm_bin"], found["mem_bin"]] = found["samples"]
    assert (counts == expected).all()
    assert set(found["run_id"]) == {RUN}
    assert set(joint_utilisation(store)["run_id"]) == {RUN, "e" * 16}
    with pytest.raises(BadInput) as error:
        joint_utilisation(store, ["no such run\n"])
    assert str(error.value).isprintable()
