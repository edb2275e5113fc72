"""Jobs and energies of Slurm's accounting."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

import import_samples as samples
import wattlaw
from imported import a_file, windows
from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput
from wattlaw.study.out_of_memory import OUT_OF_MEMORY


def test_jobs_have_gpu_hours_and_an_energy_where_it_was_measured(tmp_path):
    read = read_import(a_file(tmp_path / "jobs.txt", samples.slurm_text()))
    assert "204.0 GPU-hours, 1 with an energy" in read.files[0].description  # 8 x (25 + 0.5) h
    one, other = (run.record for run in read.runs)
    assert (one.spec.setting.gpus, one.spec.nodes, one.spec.hardware) == (8, 2, "a100")
    assert (one.spec.workload.name, one.spec.repeat, other.spec.repeat) == ("resnet-101", 0, 0)
    assert one.site is not None
    assert other.site is not None
    assert (one.site.energy_j, other.site.energy_j) == (3e8, None)
    assert [row["duration_s"] for row in windows(read)] == [90_000.0, 1800.0]


def test_jobs_without_a_result_or_a_gpu_are_left_out_with_their_sums(tmp_path):
    text = samples.slurm_text().decode()
    failed = text.replace("102|resnet|gpu|ml|COMPLETED", "102|r|gpu|ml|FAILED")
    file = read_import(a_file(tmp_path / "jobs.txt", failed)).files[0]
    assert [(each.reason, each.count, each.first) for each in file.left_out] == [
        ("a job of state FAILED", 1, 4)
    ]
    assert any("1 job of state FAILED left out, with 4.00 GPU-hours" in note for note in file.notes)
    (reason,) = jobs_of(tmp_path, a_job("103", ElapsedRaw="4000000000")).files[0].rejected
    assert "job 103: a window" in reason
    text = text.replace("gres/gpu:a100=8,gres/gpu=8,", "")
    file = read_import(a_file(tmp_path / "jobs.txt", text)).files[0]
    assert {each.reason: each.count for each in file.left_out} == {
        "a job without GPUs": 2,
        "a step of a job that is not imported": 1,
    }
    assert not file.rejected


def test_a_job_out_of_memory_is_a_failed_run_of_host_memory(tmp_path):
    lines = [a_job("7", 2e6, State="OUT_OF_MEMORY"), a_job("7.0", 2e6, State="OUT_OF_MEMORY")]
    read = jobs_of(tmp_path, *lines, a_job("8", 3e6), workload="train")
    (file,) = read.files
    assert "1 with GPUs and a result, 1 out of memory, 16.0 GPU-hours" in file.description
    assert (file.left_out, file.rejected) == ((), ())
    assert energies_of(read) == [2e6, 3e6]
    runs = wattlaw.open(read.write(tmp_path / "store").store).runs.set_index("job_id")
    assert runs["status"].to_dict() == {"7": OUT_OF_MEMORY, "8": "done"}
    assert runs.loc["7", "out_of_memory"] == "host"
    assert runs.loc["7", "gpus"] == 8


SACCT = "Cluster|JobID|JobName|State|ElapsedRaw|Start|NNodes|AllocTRES|ConsumedEnergyRaw"


def a_job(job_id: str, energy: object = 0, **changes: str) -> str:
    """Return a line of sacct: an hour on 2 nodes with 8 GPUs."""
    cells = {
        "Cluster": "c", "JobID": job_id, "JobName": "train", "State": "COMPLETED",
        "ElapsedRaw": "3600", "Start": "2026-01-31T12:00:00", "NNodes": "2",
        "AllocTRES": "cpu=8,gres/gpu=8,node=2", "ConsumedEnergyRaw": str(energy), **changes,
    }  # fmt: skip
    return "|".join(cells.values())


def jobs_of(folder: Path, *lines: str, header: str = SACCT, **settings):
    text = "\n".join([header, *lines, ""])
    return read_import(a_file(folder / "jobs.txt", text), **settings)


def energies_of(read) -> list[float | None]:
    return [run.record.site.energy_j for run in read.runs]


def test_attempts_of_a_requeued_job_are_jobs_with_their_own_steps(tmp_path):
    other = {"Start": "2026-02-01T12:00:00"}
    read = jobs_of(
        tmp_path,
        a_job("7", State="REQUEUED"), a_job("7.0", 2e6, State="CANCELLED"),
        a_job("7", **other), a_job("7.0", 3e6, **other),
        a_job("7", **other), a_job("8.0", 9e6),
    )  # fmt: skip
    assert energies_of(read) == [3e6]
    file = read.files[0]
    assert any("REQUEUED left out, with 8.00 GPU-hours and 2.000 MJ" in note for note in file.notes)
    assert {each.reason: each.first for each in file.left_out} == {
        "a job of state REQUEUED": 2,
        "a step of a job that is not imported": 3,
        "a job that is in the file twice, with the same start": 6,
        "a step without a line of its job": 7,
    }


STEPS = [  # hours from the start, hours, joules; the energy of the job
    ([(0, 1, 4e6), (1, 1, 5e6), (0, 2, 6e6)], 9e6, True),  # two in turn, within the third
    ([(0, 1, 4e6), (0.5, 1, 5e6), (1.5, 0.5, 1e6)], 6e6, True),  # the second overlaps the first
    ([(0, 1, 4e6), (0.995, 1, 5e6)], 9e6, False),  # the clean-up of the first
    ([(0, 1, 4e6), (0, 1, 4e6)], 4e6, True),
    ([(0, 1, 4e6)], 4e6, False),
]


@pytest.mark.parametrize(("steps", "expected", "is_bound"), STEPS)
def test_steps_add_up_where_they_do_not_overlap(tmp_path, steps, expected, is_bound):
    lines = [a_job("7", ElapsedRaw="7200")]
    for number, (after_h, hours, joules) in enumerate(steps):
        start = (datetime(2026, 1, 31, 12) + timedelta(hours=after_h)).isoformat()
        lines.append(a_job(f"7.{number}", joules, Start=start, ElapsedRaw=str(int(hours * 3600))))
    read = jobs_of(tmp_path, *lines)
    assert energies_of(read) == [expected]
    assert any("a lower bound" in note for note in read.runs[0].record.notes) == is_bound


ENERGIES = [  # ConsumedEnergyRaw of an hour on two nodes; joules, and why they are unknown
    ("7200000", 7.2e6, None), ("7.2M", 7.2e6, None), ("0", None, None), ("", None, None),
    ("4294967295", None, "no value"), ("8589934588", None, "no value"),
    ("18446744073709551615", None, "no value"), ("-2", None, "negative"),
    ("lots", None, "no number"), ("900000000", None, "power that no node has"),
    ("100", None, "power that no node has"),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "expected", "why"), ENERGIES)
def test_an_energy_that_no_node_can_have_is_unknown_with_the_reason(tmp_path, cell, expected, why):
    read = jobs_of(tmp_path, a_job("7", cell))
    assert energies_of(read) == [expected]
    notes = "; ".join(read.runs[0].record.notes)
    assert (why or "imported") in notes
    assert ("energy unknown" in notes) == (why is not None)


def test_ids_and_gpus_are_read_as_slurm_writes_them(tmp_path):
    gpus = {
        "gres/gpu:a100:4": 4,
        "cpu=4,gres/gpu:a100=4,gres/gpumem=40G,gres/gpuutil=90": 4,
        "gres/gpu=6,gres/gpu:a100=2,gres/gpu:h100=4": 6,
        "gres/gpu:v100=1,gres/gpu:t4=2": 3,
    }
    ids = ("12_3", "12+0", "13", "14")
    lines = [a_job(name, AllocTRES=tres, NNodes="1") for name, tres in zip(ids, gpus, strict=True)]
    lines += [a_job("15", AllocTRES="gres/gpumem=40G"), a_job("16", AllocTRES="gres/shard=2")]
    lines += [a_job("17_[1-4]", State="PENDING", Start="Unknown"), a_job("18", State="RUNNING")]
    read = jobs_of(tmp_path, *lines, header=f"* maintenance on Monday *\n{SACCT}")
    assert [run.record.site.job_id for run in read.runs] == [*ids]
    assert [run.record.spec.setting.gpus for run in read.runs] == [*gpus.values()]
    assert {each.reason: each.count for each in read.files[0].left_out} == {
        "before the header": 1,
        "a job without GPUs": 1,
        "a job that has not ended": 2,
        "a job with a share of a GPU (gres/shard)": 1,
    }
    assert any("heterogeneous" in note for note in read.runs[1].record.notes)


@pytest.mark.parametrize(
    ("elapsed", "expected"),
    [("1-02:03:04", 93_784), ("02:19:48", 8388), ("00:45.123", 45.123), ("19:48", 1188)],
)
def test_elapsed_has_the_forms_of_slurm(tmp_path, elapsed, expected):
    header = "JobID|State|Elapsed|AllocTRES|"
    read = jobs_of(tmp_path, f"7|COMPLETED|{elapsed}|gres/gpu=1|", header=header)
    assert windows(read)[0]["duration_s"] == expected
    assert any("ConsumedEnergyRaw" in note for note in read.files[0].notes)


def test_a_job_that_timed_out_counts_but_its_time_is_no_training_time(tmp_path):
    read = jobs_of(tmp_path, a_job("7", 7.2e6, State="TIMEOUT"), a_job("8", 7e6))
    assert energies_of(read) == [7.2e6, 7e6]
    assert [row["interrupted"] for row in windows(read)] == [True, False]
    assert any("time limit" in note for note in read.runs[0].record.notes)


def test_jobs_of_one_name_are_one_workload_only_if_the_user_says_so(tmp_path):
    lines = [a_job("7"), a_job("8", AllocTRES="gres/gpu=16")]

    def workloads(**settings):
        read = jobs_of(tmp_path, *lines, **settings)
        said = any("workload of its own" in note for note in read.files[0].notes)
        return {run.record.spec.workload.model_dump_json() for run in read.runs}, said

    apart, said = workloads()
    assert (len(apart), said) == (2, True)
    for settings in ({"map": "workload=JobName"}, {"workload": "train"},
                     {"map": "workload=@train"}):  # fmt: skip
        together, said = workloads(**settings)
        assert (len(together), said) == (1, False)
    with pytest.raises(BadInput, match='no column "Name"; the jobs have: AllocTRES'):
        workloads(map="workload=Name")
    with pytest.raises(BadInput, match="allowed for this format"):
        workloads(map="gpus=NNodes")


@pytest.mark.parametrize(
    ("allocated", "steps", "expected", "is_noted"),
    [
        (6e6, (3e6, 3e6), 6e6, False),
        (None, (3e6, 2e6), 3e6, True),  # the steps may overlap: a lower bound
        (4e8, (2e8, 2e8), None, True),  # 111 kW
        (4e8, (3e6, 2e6), 3e6, True),
        (4e9, (2e9, 2e9), None, True),
        (2**64 - 2, (0, 0), None, True),
    ],
)
def test_the_greatest_energy_that_is_possible_counts(
    tmp_path, allocated, steps, expected, is_noted
):
    tres = "gres/gpu=4" + (f",energy={allocated:.0f}" if allocated else "")
    one = {"NNodes": "1", "Start": "Unknown"}
    lines = [a_job(f"57_3.{i}", f"{joules:.0f}", AllocTRES="", **one)
             for i, joules in enumerate(steps)]  # fmt: skip
    read = jobs_of(tmp_path, a_job("57_3", AllocTRES=tres, **one), *lines)
    assert energies_of(read) == [expected]
    record = read.runs[0].record
    assert (record.site.job_id, record.spec.setting.gpus) == ("57_3", 4)
    assert any("energy" in note for note in record.notes) == is_noted


def test_accounting_that_cannot_be_read_names_the_remedy(tmp_path):
    bare = "7|a|COMPLETED|01:00:00|gres/gpu=1\n"
    few = "JobID|State|Elapsed|\n7|COMPLETED|1:00:00|\n"
    commas = "JobID,State,Elapsed,AllocTRES\n7,COMPLETED,1:00:00,cpu=1,gres/gpu=1\n"
    for text in (bare, few, commas, '{"jobs": []}'):
        with pytest.raises(BadInput, match="sacct --parsable2"):
            read_import(a_file(tmp_path / "jobs.txt", text), format="slurm")
