"""Metrics of the DCGM exporter, and logs of amd-smi."""

import json

import pytest

import import_samples as samples
from imported import a_file, gpus, joules, left_out, made, refusal, verdicts, windows
from wattlaw.api.imports import Import, read_import
from wattlaw.common.errors import BadInput


def test_dcgm_energies_are_of_its_counter_and_blanks_are_missing(tmp_path):
    read = read_import(a_file(tmp_path / "x.prom", samples.dcgm_text()))
    (row,) = windows(read)
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "ok")
    assert row["gpu_energy_j"] == pytest.approx(2 * 300.5 * row["duration_s"], rel=1e-6)
    assert row["sm_util_mean"] == pytest.approx(0.9)
    assert row["host"] == "n1"
    assert [*left_out(read).values()] == [2, 2]  # comments, blank values


def test_range_queries_of_several_metrics_are_one_time_series(tmp_path):
    energy = json.loads(samples.dcgm_json())
    for result in energy["data"]["result"]:
        result["metric"]["__name__"] = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
        result["values"] = [[t, str(1000 * 300.5 * i)] for i, (t, _) in enumerate(result["values"])]
    files = [a_file(tmp_path / "power.json", samples.dcgm_json()),
             a_file(tmp_path / "energy.json", json.dumps(energy))]  # fmt: skip
    (row,) = windows(read_import(files))
    assert row["energy_verdict"] == "ok"
    assert row["gpu_energy_counter_j"] == pytest.approx(row["gpu_energy_integral_j"])


def test_a_scrape_without_times_is_refused(tmp_path):
    text = "\n".join(line.rsplit(" ", 1)[0] if "{" in line else line
                     for line in samples.dcgm_text().decode().splitlines())  # fmt: skip
    with pytest.raises(BadInput, match="without a time"):
        read_import(a_file(tmp_path / "x.prom", text))


def test_amd_smi_has_joules_and_percent(tmp_path):
    (row,) = windows(read_import(a_file(tmp_path / "amd.csv", samples.amd_smi())))
    assert row["gpu_energy_counter_j"] == pytest.approx(1000 * row["duration_s"], rel=1e-6)
    assert (row["energy_verdict"], row["sm_util_mean"]) == ("ok", pytest.approx(0.95))


def dcgm(watts, seconds, uuid="GPU-1", metric="POWER_USAGE", **labels):
    """Return the values of a GPU as lines of Prometheus text."""
    named = {"gpu": "0", **({"UUID": uuid} if uuid else {}), **labels}
    text = ",".join(f'{name}="{value}"' for name, value in named.items())
    time_s = 1_717_920_000
    return [f"DCGM_FI_DEV_{metric}{{{text}}} {watts} {1000 * (time_s + s)}" for s in seconds]


def hosts(read: Import) -> set[str]:
    return {row["host"] for run in read.runs for row in run.windows}


def test_nodes_are_those_whose_gpus_differ(tmp_path):
    # Two nodes of two GPUs; the exporter of the first one restarts and is another pod.
    lines = [line for uuid, pods in (("GPU-a", ("dx-aaaaa", "dx-ccccc")),
                                     ("GPU-b", ("dx-aaaaa", "dx-ccccc")),
                                     ("GPU-c", ("dx-bbbbb",) * 2), ("GPU-d", ("dx-bbbbb",) * 2))
             for pod, times in zip(pods, (range(0, 60, 5), range(60, 125, 5)), strict=True)
             for line in dcgm(250, times, uuid, Hostname=pod)]  # fmt: skip
    read = read_import(made(tmp_path, "dcgm.txt", *lines))
    assert (gpus(read), len(hosts(read)), read.runs[0].record.spec.nodes) == ([4], 2, 2)
    assert joules(read) == [pytest.approx(4 * 250 * 120)]
    # The other metric of its own file knows one of the pods only.
    files = [made(tmp_path, "one.txt", *lines),
             made(tmp_path, "other.txt", *dcgm(80, range(60, 125, 5), "GPU-a", "GPU_UTIL",
                                               Hostname="dx-ccccc"))]  # fmt: skip
    both = read_import(files)
    assert (gpus(both), joules(both)) == ([4], [pytest.approx(4 * 250 * 120, rel=0.05)])


def test_gpus_without_a_uuid_are_those_of_their_node(tmp_path, capsys):
    lines = [line for host in ("n1", "n2") for line in dcgm(250, range(60), None, Hostname=host)]
    read = read_import(made(tmp_path, "dcgm.txt", *lines))
    assert (gpus(read), hosts(read)) == ([2], {"n1", "n2"})
    pods = [*dcgm(250, range(30), None, Hostname="dx-aaaaa"),
            *dcgm(250, range(30, 60), None, Hostname="dx-bbbbb")]  # fmt: skip
    assert "UUID" in refusal(made(tmp_path, "pods.txt", *pods), capsys)


@pytest.mark.parametrize("other", [{"Hostname": "dx-bbbbb"}, {"pod": "b"}, {"GPU_I_ID": "2"}])
def test_two_series_of_a_gpu_count_it_once(tmp_path, other):
    first = {"Hostname": "dx-aaaaa", "GPU_I_ID": "1"} if "GPU_I_ID" in other else {
        "Hostname": "dx-aaaaa"}  # fmt: skip
    lines = [*dcgm(250, range(60), **first), *dcgm(250, range(60), **{**first, **other})]
    read = read_import(made(tmp_path, "dcgm.txt", *lines))
    assert (gpus(read), len(hosts(read))) == ([1], 1)
    assert joules(read) == [pytest.approx(250 * 59)]
    assert verdicts(read) == ({"suspect"} if "GPU_I_ID" in other else {"ok"})
    assert left_out(read) == {"another series of the same GPU and time": 60}


def test_a_counter_that_restarts_is_no_energy(tmp_path):
    counts = [[line.replace("} 0 ", f"}} {mj} ") for line, mj in
               zip(dcgm(0, times, metric="TOTAL_ENERGY_CONSUMPTION"), range(start, 10**9, 250_000),
                   strict=False)]
              for times, start in ((range(30), 5_000_000), (range(30, 60), 1000))]  # fmt: skip
    lines = [*counts[0], *counts[1], *dcgm(250, range(60))]
    read = read_import(made(tmp_path, "dcgm.txt", *lines))
    assert (joules(read), verdicts(read)) == ([pytest.approx(250 * 59)], {"suspect"})


def test_a_gpu_without_power_is_part_of_no_sum_that_is_ok(tmp_path):
    lines = [*dcgm(250, range(60)), *dcgm(90, range(60), "GPU-2", "GPU_UTIL")]
    read = read_import(made(tmp_path, "dcgm.txt", *lines))
    assert (gpus(read), verdicts(read)) == ([2], {"partial"})
    assert any("GPU-2" in note for note in read.runs[0].record.notes)
