"""The reader of tables of measurements, whose columns are named as fields."""

from pathlib import Path

import pytest

from wattlaw.common.errors import BadInput
from wattlaw.store.fields import Field
from wattlaw.store.measurements import read_measurements
from wattlaw.store.units import finite_number
from wattlaw.study.out_of_memory import OUT_OF_MEMORY


def a_table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_columns_that_are_named_as_fields_are_values_in_their_units(tmp_path):
    table = read_measurements(
        a_table(
            tmp_path / "t.csv",
            "gpus,local_batch,step_time_ms,power_kw,sm_util_percent,options.lr,workload",
            "2,16,250,0.6,97,0.1,bert",
            "Total,,500,,,,",
            "4,16,OOM,,,,bert",
            "8,,1 s,,,,bert",
        )
    )
    (first, memory, last), left_out = table.rows, dict(table.left_out)
    assert first.setting == {"gpus": 2, "local_batch": 16, "options.lr": "0.1", "workload": "bert"}
    assert first.result == pytest.approx(
        {"step_time_s": 0.25, "power_w": 600, "sm_util": 0.97, "gpu_energy_j": 150}
    )
    assert (last.line, last.result) == (5, {"step_time_s": 1.0})
    assert left_out.keys() == {3}
    assert memory.failure == OUT_OF_MEMORY
    assert memory.setting == {"gpus": 4, "local_batch": 16, "workload": "bert"}
    assert table.checked().time_field == "step_time_s"


def test_a_launcher_may_have_fields_of_its_own(tmp_path):
    path = a_table(tmp_path / "t.csv", "gpus,step_time_s,startup_s", "1,2,30")
    with pytest.raises(BadInput, match='no field "startup_s"; allowed: gpus, epoch_time_s'):
        read_measurements(path)
    startup = {"startup_s": Field(finite_number, "seconds", float)}
    (row,) = read_measurements(path, others=startup).rows
    assert row.result["startup_s"] == 30


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("gpus,step_time_s", "1,-2"), "line 2: step_time_s is -2.0; allowed: a number > 0"),
        (("gpus,step_time_s", "1,2", ",3"), "line 3: gpus is missing"),
        (("gpus,step_time_s,data_wait_s", "1,2,3"), "line 2: data_wait_s, communication_s"),
        (("gpus,step_time_s",), "no rows"),
        (("gpus,step_time_s,step_time_ms", "1,2,3"), "step_time_s is given twice"),
        (("gpus,step_time", "1,2"), 'column "step_time": the unit of the column is unclear'),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_by_line_or_column(tmp_path, lines, message):
    with pytest.raises(BadInput) as error:
        read_measurements(a_table(tmp_path / "t.csv", *lines)).checked()
    assert str(tmp_path / "t.csv") in str(error.value)
    assert message in str(error.value)


def test_fp8_and_shares_of_copies_are_read_where_a_setting_can_say_them(tmp_path):
    cells = [("fp8", "zero1 over all dp"), ("amp_fp8", "fsdp 4"), ("MXFP8", "FULL_SHARD"),
             ("FP8-CS", "zero1 over 4"), ("float8 rowwise", "zero1"), ("NVFP4", "zero1"),
             ("bf16", "zero1 over 2"), ("fp32", "zero1 over everything")]  # fmt: skip
    lines = [f'8,2,16,1.5,"{precision}","{sharding}"' for precision, sharding in cells]
    header = "gpus,tp,global_batch,step_time_s,precision,sharding"
    read = read_measurements(a_table(tmp_path / "t.csv", header, *lines)).rows
    names = ("precision", "options.fp8", "sharding")
    assert [[(row.setting or {}).get(name) for name in names] for row in read[:5]] == [
        ["fp8", None, "zero1"], ["fp8", None, "fsdp"], ["fp8", "mx", "fsdp"],
        ["fp8", "cs", "zero1"], ["fp8", "rowwise", "zero1"],
    ]  # fmt: skip
    assert [row.fault is None for row in read] == [True] * 5 + [False] * 3
    assert 'precision is "NVFP4"' in (read[5].fault or "")
    assert "among 2 of 4 copies" in (read[6].fault or "")


def test_a_row_without_a_throughput_has_its_time_of_a_step(tmp_path):
    header = "gpus,global_batch,samples_per_s,step_time_s"
    path = a_table(tmp_path / "t.csv", header, "8,16,32,9", "8,16,,1.5", "8,16,,")
    one, two, none = read_measurements(path).rows
    assert (one.result["step_time_s"], two.result["step_time_s"]) == (0.5, 1.5)
    assert none.fault == "the throughput is missing"
