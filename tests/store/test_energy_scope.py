"""``--energy-scope``: what energies count, in every command that shows one."""

import pytest

import wattlaw
from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.analysis.metrics.metrics import run_metrics

#: Of each GPU, and of a node with two.
GPU_J, CPU_J, DRAM_J, NODE_J = 1000.0, 300.0, 50.0, 3000.0
COUNTS = (2, 4, 8)


def tables(*, node: bool = True, gpu: bool = True, repeats: int = 2):
    """Return runs with and without a cap that halves the energy of the GPUs alone."""
    runs, windows = [], []
    for gpus in COUNTS:
        for cap in (None, 200.0):
            for repeat in range(repeats):
                run_id = f"{gpus:04}{int(cap or 0):04}{repeat:08}"
                runs.append(
                    run_row(
                        run_id, workload="resnet50", gpus=gpus, repeat=repeat, power_limit_w=cap,
                        hardware="V100-32GB", global_batch=64 * gpus, nodes=gpus // 2,
                    )
                )  # fmt: skip
                noise = 1 + 0.01 * repeat
                of_gpus = GPU_J * gpus * noise * (1.0 if cap is None else 0.5)
                energies = {"cpu_energy_j": CPU_J * gpus / 2, "dram_energy_j": DRAM_J * gpus / 2}
                if gpu:
                    energies["gpu_energy_j"] = of_gpus
                if node:
                    energies |= {
                        "node_energy_j": NODE_J * gpus / 2 * noise,
                        "energy_scope": "node",
                        "node_energy_source": "counter",
                        "node_energy_verdict": "ok",
                    }
                windows.append(
                    window_row(run_id, 1, duration_s=100 / gpus * noise, energy_source="counter",
                               energy_verdict="ok", **energies)
                )  # fmt: skip
    return frames(runs, windows)


@pytest.mark.parametrize(
    ("scope", "joules", "name"),
    [("gpu", 2 * GPU_J, "gpu"), ("node", NODE_J, "node"), ("all", NODE_J, "node"),
     ("gpu+cpu+dram", 2 * GPU_J + CPU_J + DRAM_J, "gpu+cpu+dram")],
)  # fmt: skip
def test_an_energy_is_that_of_the_scope_in_all_its_columns(scope, joules, name):
    row = run_metrics(*tables(), scope).iloc[0]
    assert (row["gpus"], row["energy_scope"], row["energy_is"]) == (2, name, f"{name}, counter")
    assert row["energy_j"] == row["energy_per_epoch_j"] == pytest.approx(joules)
    assert row["energy_per_gpu_hour_j"] == pytest.approx(joules * 3600 / 100)
    assert row["energy_delay_js"] == pytest.approx(joules * 50)


@pytest.mark.parametrize(("made", "scope"), [({"node": False}, "node"), ({"gpu": False}, "gpu")])
def test_a_scope_that_was_not_measured_is_missing(made, scope):
    table = run_metrics(*tables(**made), scope)
    assert table["energy_j"].isna().all() and table["energy_is"].isna().all()
    assert set(table["energy_verdict"]) == {"unavailable"}
    assert table["time_s"].notna().all()


def test_every_analysis_names_the_scope(tmp_path):
    store = write_store(tmp_path / "store", *tables()).path
    results = wattlaw.open(store)
    assert results.advise(energy_scope="gpu").rests_on.energy_is == "gpu, counter"
    assert results.advise().rests_on.energy_is == "node, counter"
    laws = results.fit(y="energy_j", energy_scope="gpu")
    assert {row.group["energy_is"] for row in laws.rows} == {"gpu, counter"}
    capped = results.advise(energy_scope="gpu").recommended
    assert capped.setting.power_limit_w == 200.0
    setting = {"gpus": 8, "power_limit_w": None}
    (change,) = [
        item
        for item in results.compare(str(store), energy_scope="gpu").changes
        if item.quantity == "energy" and setting.items() <= (item.setting or {}).items()
    ]
    assert change.a == pytest.approx(8 * GPU_J, rel=0.02)
