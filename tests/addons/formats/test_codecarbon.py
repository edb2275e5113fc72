"""Emissions of CodeCarbon."""

import pytest

import import_samples as samples
from imported import a_file, joules, left_out, made, notes, windows
from public_data import public_file
from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput


def test_ranks_of_one_machine_do_not_count_it_twice(tmp_path):
    path = a_file(tmp_path / "emissions.csv", samples.codecarbon())
    read = read_import(path)
    first, second = windows(read)
    assert first["gpu_energy_j"] == pytest.approx(0.01 * 3.6e6)
    assert first["dram_energy_j"] == pytest.approx(0.0001 * 3.6e6)
    assert second["gpu_energy_j"] == pytest.approx(0.02 * 3.6e6)
    assert "lines 2, 3" in notes(read)
    assert {row["energy_source"] for row in windows(read)} == {"estimated"}
    two_nodes = windows(read_import(path, map="nodes=@2"))
    assert two_nodes[0]["gpu_energy_j"] == pytest.approx(0.0199 * 3.6e6)


@pytest.mark.parametrize(
    ("name", "duration_s", "energies_kwh"),
    [
        ("codecarbon_2021.csv", 175.7496521, (None, 0.001079437, 0.000618153)),
        ("codecarbon_3.csv", 161.20380687713623, (None, None, 0.00057442898176)),
    ],
)
def test_each_generation_of_emissions_is_read(name, duration_s, energies_kwh):
    (row,) = windows(read_import(public_file(name), map="gpus=@1"))
    assert row["duration_s"] == duration_s
    for column, kwh in zip(("gpu", "cpu", "dram"), energies_kwh, strict=True):
        assert row.get(f"{column}_energy_j") == (
            None if kwh is None else pytest.approx(kwh * 3.6e6)
        )


def test_versions_of_emissions_have_other_columns_and_updates_of_a_line(tmp_path):
    first = "timestamp,project_name,duration,emissions,energy_consumed"
    path = a_file(tmp_path / "v1.csv", f"{first}\n2026-01-31T12:00:00,p,60,0.1,0.5\n")
    (run,) = read_import(path, map="gpus=@1").runs
    assert run.windows[0]["energy_verdict"] == "unavailable"
    assert run.record.site.energy_j == 0.5 * 3.6e6
    lines = samples.codecarbon().decode().splitlines()
    update = lines[3].replace("13:00:00", "13:01:00").replace("120.0", "180.0", 1)
    update = update.replace(",0.02,", ",0.03,")
    read = read_import(a_file(tmp_path / "v3.csv", "\n".join([lines[0], lines[3], update])))
    (row,) = windows(read)
    assert (row["duration_s"], row["gpu_energy_j"]) == (180.0, pytest.approx(0.03 * 3.6e6))
    assert [*left_out(read).values()] == [1]
    with pytest.raises(BadInput, match="none of its 1 rows"):
        read_import(path).write(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_lines_that_add_up_those_before_count_once():
    read = read_import(public_file("codecarbon_2.4.csv"))
    longest = max(windows(read), key=lambda row: row["duration_s"])
    assert longest["duration_s"] == 2486.815047979355
    assert len(read.runs) == 9  # of 19 lines
    assert [*left_out(read).values()] == [7]


EMISSIONS = "timestamp,project_name,run_id,duration,emissions,energy_consumed,gpu_energy,gpu_count"


def emissions(*rows: tuple[str, str, str, float, float], sep: str = ",") -> list[str]:
    """Return a file of rows: time, project, run_id, seconds, kWh of the GPUs."""
    lines = (
        (f"2026-08-12T{time}", project, run_id, str(s), "0.1", str(kwh), str(kwh), "1")
        for time, project, run_id, s, kwh in rows
    )
    return [EMISSIONS.replace(",", sep), *(sep.join(cells) for cells in lines)]


@pytest.mark.parametrize(
    "run_id", ["None", "", "nan", "null", "0", "job", "my run", "5b0fa12a-3dd7"]
)
def test_processes_of_one_run_id_are_those_that_begin_at_other_times(tmp_path, run_id):
    path = made(tmp_path, "emissions.csv", *emissions(
        ("10:02:00", "job", run_id, 120.5, 0.02), ("10:04:03", "job", run_id, 121.0, 0.03),
        ("12:00:00", "job", run_id, 60.0, 0.01)))  # fmt: skip
    assert sorted(joules(read_import(path))) == pytest.approx([36_000, 72_000, 108_000])


@pytest.mark.parametrize("run_id", ["r1", "None", "5b0fa12a-3dd7-45bb-9766-cc326314d9f1"])
def test_tasks_count_once_beside_their_total(tmp_path, run_id):
    head, *rows = emissions(
        ("10:01:00", "job", run_id, 60.0, 0.01), ("10:03:00", "job", run_id, 110.0, 0.02),
        ("10:03:01", "job", run_id, 0.4, 0.0001), ("10:03:05", "job", run_id, 185.0, 0.04),
        ("11:00:00", "job", run_id, 30.0, 0.005))  # fmt: skip
    lines = [f"{name},{row}" for name, row in zip(("a", "b", "c", "", "d"), rows, strict=True)]
    only = read_import(made(tmp_path, "a.csv", f"task_name,{head}", *lines[:3]))
    assert joules(only) == [pytest.approx(0.0301 * 3.6e6)]
    read = read_import(made(tmp_path, "b.csv", f"task_name,{head}", *lines))
    assert sorted(joules(read)) == pytest.approx([0.005 * 3.6e6, 0.04 * 3.6e6])
    assert left_out(read) == {"a task of a process whose total is on another line": 3}


def test_versions_appended_to_one_file_are_all_read(tmp_path):
    first = emissions(("10:02:00", "a", "r1", 60.0, 0.01), ("10:05:00", "b", "r2", 60.0, 0.02))
    head, *second = emissions(("11:02:00", "c", "r3", 60.0, 0.03))
    torn = first[1].rsplit(",", 2)[0]
    path = made(
        tmp_path, "emissions.csv", *first, torn, f"{head},on_cloud", f"{second[0]},N", first[1]
    )
    read = read_import(path)
    assert joules(read) == pytest.approx([0.01 * 3.6e6, 0.02 * 3.6e6, 0.03 * 3.6e6])
    assert left_out(read) == {"another number of cells than the header": 2}


def test_energies_with_decimal_commas_are_read_and_unclear_ones_rejected(tmp_path):
    rows = [("10:02:00", "a", "r1", "60,5", "0,011"), ("11:02:00", "b", "r2", "60,123456", "0,02"),
            ("12:02:00", "c", "r3", "60", "12,500"),
            ("13:02:00", "d", "r4", "60", "-0,1")]  # fmt: skip
    read = read_import(made(tmp_path, "emissions.csv", *emissions(*rows, sep=";")))
    assert joules(read) == pytest.approx([0.011 * 3.6e6, 0.02 * 3.6e6])
    assert [text.split(":")[0] for text in read.files[0].rejected] == ["line 4", "line 5"]
