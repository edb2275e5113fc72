"""Units of tables, in names, cells and the row below the header; kinds of 8 bits and of shards."""

import pytest

from imported import a_file, made, notes, windows
from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput
from wattlaw.store.measurements import read_measurements

TIMES = [  # seconds of a step of 64 samples, or why they are not known
    ("step_time_ms=dt", "250", 0.25),
    ("step_time_s=dt_ms", "250", 0.25),
    ("step_time_ms=dt_s", "250", "unit s is unclear or another one; allowed: step_time_ns"),
    ("step_time_s=elapsedMs", "250", 0.25),
    ("step_time_s=step_ms_mean", "250", 0.25),
    ("step_time=ms/step", "250", 0.25),
    ("step_time_s=Time per iteration (ms)", "250", 0.25),
    ("step_time_s=ms_per_epoch", "250", "per epoch"),
    ("step_time_s=s/sample", "1", "per sample"),
    ("step_time_s=samples/s", "256", "a rate; map it to throughput"),
    ("step_time_s=t_min", "0.5", 30.0),
    ("step_time=t_h", "0.5", 1800.0),
    ("step_time=dt", "250", "step_time_min, step_time_h, step_time_d.*hh:mm:ss"),
    ("throughput=samples/min", "15360", 0.25),
    ("steps_per_s=rate", "4.0", 0.25),
    ("step_time=dt", "250 ms", 0.25),
    ("step_time=dt", "00:00:00.25", 0.25),
    ("throughput=img_per_sec", "256", 0.25),
    ("throughput=samples/s/gpu", "128", 0.25),
    ("tokens_per_s_per_gpu=rate,tokens_per_sample=@1024", str(128 * 1024), 0.25),
    ("throughput=rate", "4", "unit of the throughput is unclear"),
    ("tokens_per_s=rate", "4", "tokens_per_sample"),
]
POWERS = [  # watts, or why they are not known
    ("power=p", "259.97 W", 259.97), ("power=p_mW", "259970", 259.97),
    ("power=p [kW]", "2.5", 2500),
    ("power=p_mw", "1", "unclear"),
    ("power_w=p_kWh", "1", "another one"),
    ("power_w=p_kW", "2.5", 2500),
    ("power_MW=p_mw", "0.0005", 500), ("power_w=power_per_gpu_w", "100", "per gpu"),
    ("power_w=p_kW_avg", "0.2", 200.0), ("power_w=p_min", "200", 200.0),
    ("power_w=p*n", "1", 'no column "p.n"'),
]  # fmt: skip


@pytest.mark.parametrize(("mapping", "cell", "expected"), [*TIMES, *POWERS])
def test_units_are_read_where_they_are_written(tmp_path, mapping, cell, expected):
    column, is_power = mapping.split(",")[0].partition("=")[2], mapping.startswith("power")
    path = a_file(tmp_path / "t.csv", f"n;t;{column.removesuffix('*n')}\n2;10;{cell}\n")
    mapping = f"gpus=n,{'epoch_time_s=t' if is_power else 'global_batch=@64'},{mapping}"
    if isinstance(expected, str):
        with pytest.raises(BadInput, match=expected):
            read_import(path, map=mapping)
        return
    (row,) = windows(read_import(path, map=mapping))
    if is_power:
        assert row["gpu_energy_j"] == pytest.approx(10 * expected)
    else:
        assert row["duration_s"] == pytest.approx(expected)
        assert (row["steps"], row["samples"]) == (1, 64)


def test_units_of_a_row_below_the_header_and_shares_are_converted(tmp_path):
    path = a_file(tmp_path / "t.csv", "n,t,e,u,util_share\n[-],[ms],[Wh],[%],\n1,250,0.05,97,0.9\n")
    mapping = "gpus=n,epoch_time_s=t,gpu_energy=e,sm_util=u,mem_util_percent=util_share"
    read = read_import(path, map=mapping)
    (row,) = windows(read)
    found = [row[name] for name in ("duration_s", "gpu_energy_j", "sm_util_mean", "mem_util_mean")]
    assert found == pytest.approx([0.25, 180, 0.97, 0.9])
    assert 'epoch_time_s: column "t" is converted from ms' in notes(read)


def test_fp8_and_shares_of_copies_are_read_where_a_setting_can_say_them(tmp_path):
    cells = [("fp8", "zero1 over all dp"), ("amp_fp8", "fsdp 4"), ("MXFP8", "FULL_SHARD"),
             ("FP8-CS", "zero1 over 4"), ("float8 rowwise", "zero1"), ("NVFP4", "zero1"),
             ("bf16", "zero1 over 2"), ("fp32", "zero1 over everything")]  # fmt: skip
    lines = [f'8,2,16,1.5,"{precision}","{sharding}"' for precision, sharding in cells]
    header = "gpus,tp,global_batch,step_time_s,precision,sharding"
    read = read_measurements(made(tmp_path, "t.csv", header, *lines)).rows
    names = ("precision", "options.fp8", "sharding")
    assert [[(row.setting or {}).get(name) for name in names] for row in read[:5]] == [
        ["fp8", None, "zero1"], ["fp8", None, "fsdp"], ["fp8", "mx", "fsdp"],
        ["fp8", "cs", "zero1"], ["fp8", "rowwise", "zero1"],
    ]  # fmt: skip
    assert [row.fault is None for row in read] == [True] * 5 + [False] * 3
    assert 'precision is "NVFP4"' in (read[5].fault or "")
    assert "among 2 of 4 copies" in (read[6].fault or "")
