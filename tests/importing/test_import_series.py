"""Logs of nvidia-smi, and time series in general; many inputs were misread once."""

import pytest

import import_samples as samples
from imported import (
    POWER,
    a_file,
    gpus,
    joules,
    left_out,
    made,
    metrics,
    notes,
    refusal,
    smi,
    verdicts,
    windows,
)
from wattlaw.api.imports import read_import
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput


def test_active_phases_of_a_log_get_energy_by_the_checks_of_our_own(tmp_path):
    read = read_import(a_file(tmp_path / "gpu.csv", samples.nvidia_smi()))
    assert "2 GPUs, 120 readings over" in read.files[0].description
    assert "UTC assumed" in read.files[0].description
    assert "1 active phase by utilisation" in notes(read)
    (run,) = read.runs
    assert (run.record.spec.setting.gpus, run.record.spec.hardware) == (2, "NVIDIA A100")
    (row,) = run.windows
    assert row["phase"] == "run"
    assert row["duration_s"] == pytest.approx(40, abs=1.1)
    # 300 W and 301 W for the time of the window; at its edges power changes over a second.
    assert row["gpu_energy_j"] == pytest.approx(601 * row["duration_s"], rel=0.02)
    assert (row["energy_source"], row["energy_verdict"]) == ("integral", "ok")
    assert row["sm_util_mean"] == pytest.approx(0.9, abs=0.03)
    assert row["power_limit_mean_w"] == 400
    assert run.telemetry is not None
    assert run.telemetry.num_rows > 100


def test_a_window_is_in_the_zone_that_the_user_names(tmp_path):
    path = a_file(tmp_path / "gpu.csv", samples.nvidia_smi())
    window = "2026-01-31T12:00:20+01:00..2026-01-31T12:00:40+01:00"
    read = read_import(path, timezone="+01:00", windows=[window])
    (row,) = windows(read)
    assert row["start_ns"] == 1_769_857_220 * 10**9
    assert row["gpu_energy_j"] == pytest.approx(20 * 601)
    berlin = read_import(path, timezone="Europe/Berlin", windows=[window])
    assert windows(berlin)[0]["gpu_energy_j"] == row["gpu_energy_j"]
    with pytest.raises(BadInput, match="no reading is within a window; --timezone"):
        read_import(path, windows=[window])
    with pytest.raises(BadInput, match="timezone"):
        read_import(path, timezone="Mars/Base")
    for text in ("12:00..13:00", "2026-01-31T12:00:40..2026-01-31T12:00:20", "5"):
        with pytest.raises(BadInput, match=r"START\.\.END"):
            read_import(path, windows=[text])


def test_units_may_be_in_the_header_alone_and_values_missing(tmp_path):
    rows = [
        f"2026/01/31 12:00:{i:02}.000, GPU-a, 250.50, 75, [N/A], [Not Supported]" for i in range(60)
    ]
    head = "timestamp, uuid, power.draw.instant [W], utilization.gpu [%], clocks.sm [MHz], name"
    # A second header where the log was appended to, torn lines, and a last line without its end.
    lines = [head, *rows[:30], "2026/01/31 12:00", "2026/01/31 12:00:29.5, GPU-a, 25", head,
             *rows[30:], "2026/01/31 12:01:00.000, GPU-a, 2"]  # fmt: skip
    read = read_import(a_file(tmp_path / "gpu.log", "\n".join(lines)))
    assert [*left_out(read).values()] == [2, 1]  # torn lines, and the last one
    (row,) = windows(read)
    assert row["gpu_energy_j"] == pytest.approx(250.5 * row["duration_s"], rel=1e-6)
    assert row["sm_util_mean"] == 0.75
    assert row.get("sm_clock_mean_mhz") is None


def test_the_devices_of_a_run_can_be_named(tmp_path):
    path = a_file(tmp_path / "gpu.csv", samples.nvidia_smi(gpus=4))
    with pytest.raises(BadInput, match="4 GPUs"):
        read_import(path, map="gpus=@2")
    read = read_import(path, map="gpus=@2,global_batch=@64", devices=["0", "3"])
    assert read.runs[0].record.spec.setting.local_batch == 32
    assert windows(read)[0]["gpu_power_mean_w"] == pytest.approx(301.5, rel=0.02)
    with pytest.raises(BadInput, match="--device"):
        read_import(path, devices=["9"])


def test_epochs_of_a_second_file_get_the_energy_of_the_log(tmp_path):
    log = a_file(tmp_path / "gpu.csv", samples.nvidia_smi())
    read = read_import([log, a_file(tmp_path / "marks.csv", samples.windows())])
    table = metrics(read, tmp_path)
    assert table["epoch_time_s"].tolist() == [20.0]
    assert table["energy_per_epoch_j"].tolist() == pytest.approx([20 * 601], rel=0.02)
    assert table["samples_per_epoch"].tolist() == [1000]
    by_lines = read_import(
        [log, a_file(tmp_path / "train.log", samples.log())], pattern=r"epoch (?P<epoch>\d+) done"
    )
    assert [row["epoch"] for row in windows(by_lines)] == [1, 2, 3, 4]
    assert [row["duration_s"] for row in windows(by_lines)] == [10.0] * 4
    by_steps = read_import([log, tmp_path / "train.log"], pattern=r"epoch (?P<step>\d+) done")
    assert [row["steps"] for row in windows(by_steps, "steps")] == [1] * 4


@pytest.mark.parametrize(
    ("apart_s", "watts"),
    [(0.0, (250, 250)), (0.001, (250, 120)), (0.017, (310, 90, 200, 200)), (0.09, (70,) * 8)],
)
def test_gpus_without_an_id_are_refused_or_as_many_as_the_user_says(
    tmp_path, capsys, apart_s, watts
):
    rows = [
        f"2026/09/11 04:19:{s + apart_s * i:06.3f}, {each}.00 W"
        for s in range(20)
        for i, each in enumerate(watts)
    ]
    path = made(tmp_path, "gpu.csv", f"timestamp, {POWER}", *rows)
    assert "index or uuid" in refusal(path, capsys)
    assert "index or uuid" in refusal(path, capsys, "--map", "gpus=@1")
    read = read_import(path, map=f"gpus=@{len(watts)}")
    assert gpus(read) == [len(watts)]
    assert joules(read) == [pytest.approx(19 * sum(watts), rel=0.04)]


TIMES = {
    "even": [float(s) for s in range(40)],
    "jitter": [s + 0.3 * ((s * 7919) % 13) / 13 for s in range(40)],
    "growing": [0.02 * s**2 for s in range(50)],
    "a pause": [s / 10 + 20 * (s > 50) for s in range(100)],
    "bursts": [s / 10 + 5 * sum(s > b for b in (7, 30, 71)) for s in range(100)],
    "some late": [s + (0.9 if s % 7 == 3 else 0.0) for s in range(40)],
}


@pytest.mark.parametrize("name", TIMES)
def test_one_gpu_at_irregular_times_is_one(tmp_path, name):
    rows = {s: f"{250 + int(20 * (i % 5))}.00 W" for i, s in enumerate(TIMES[name])}
    assert gpus(read_import(made(tmp_path, "gpu.csv", *smi(rows, POWER)))) == [1]


WRITTEN = {  # the cells of a row with its watts, what is between cells, and the encoding
    "UTF-16": ("0, {}.00 W, 95 %", ", ", "utf-16"),
    "UTF-8 with a mark": ("0, {}.00 W, 95 %", ", ", "utf-8-sig"),
    "semicolons": ("0;{},00 W;95 %", ";", "utf-8"),
    "semicolons, three decimals": ("0;{},000;95", ";", "utf-8"),
    "tabs": ("0\t{}.00 W\t95 %", "\t", "utf-8"),
    "decimal commas": ("0, {},00 W, 95 %", ", ", "utf-8"),
    "quoted decimal commas": ('0,"{},00 W",95 %', ",", "utf-8"),
    "kilowatts": ("0, 0.{} kW, 95 %", ", ", "utf-8"),
    "milliwatts": ("0, {}000 mW, 95 %", ", ", "utf-8"),
}
OF_TIME = ["dot", "comma", "day", "ms", "us", "ns", "s with a comma"]


@pytest.mark.parametrize(
    ("how", "time"),
    [*((how, "dot") for how in WRITTEN), *(("decimal commas", time) for time in OF_TIME[1:]),
     ("semicolons", "comma")],
)  # fmt: skip
def test_a_log_is_read_however_it_is_written(tmp_path, how, time):
    form, sep, encoding = WRITTEN[how]
    rows = {s: form.format(s % 2 + 250) for s in range(21)}
    lines = smi(rows, "index", POWER, "utilization.gpu [%]", sep=sep)
    for number, s in enumerate(rows, 1):
        day, cells = lines[number].split(sep, 1)
        ms = 1000 * (1_789_100_341 + s) + 500
        written = {"dot": day, "comma": day.replace(".", ","), "ms": str(ms), "us": f"{ms}000",
                   "day": day.replace("2026/09/11", "11.09.2026"), "ns": f"{ms}000000",
                   "s with a comma": f"{ms // 1000},{ms % 1000}"}  # fmt: skip
        lines[number] = written[time] + sep + cells
    read = read_import(made(tmp_path, "gpu.csv", *lines, encoding=encoding))
    assert (gpus(read), verdicts(read)) == ([1], {"ok"})
    assert joules(read) == [pytest.approx(20 * 250.5, rel=1e-3)]


DMON = (
    "#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk ",
    "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz ",
)


@pytest.mark.parametrize("sep", [" ", ", "])
def test_a_log_of_dmon_with_dates_is_read(tmp_path, sep):
    rows = [sep.join(f"20260911 04:19:{s:02} {i} {200 + 50 * i} 35 - 90 10 1593 1410".split())
            for s in range(30) for i in range(2)]  # fmt: skip
    read = read_import(made(tmp_path, "dmon.log", *DMON, *rows[:20], *DMON, *rows[20:], "2026"))
    assert (gpus(read), joules(read)) == ([2], [pytest.approx(450 * 29)])
    assert sum(left_out(read).values()) == 1
    assert read.runs[0].windows[0]["sm_util_mean"] == pytest.approx(0.9)


OTHER_OUTPUTS = {
    "dmon": ("# gpu    pwr  gtemp  mtemp     sm    mem", "# Idx      W      C      C      %      %",
             "    0     35     34      -      0      0"),
    "dmon -o T": ("#Time        gpu    pwr  gtemp", "#HH:MM:SS    Idx      W      C",
                  " 10:39:13      0     35     34"),
    "noheader": ("2026/09/11 04:19:41.982, 0, 300.00 W", "2026/09/11 04:19:42.982, 0, 300.00 W"),
    "noheader, nounits": ("2026/09/11 04:19:41.982, 300.00", "2026/09/11 04:19:42.982, 300.00"),
    "noheader, index first": ("0, 2026/09/11 04:19:41.982, 300.00",) * 2,
    "noheader, time last": ("NVIDIA A100, 300.00 W, 2026/09/11 04:19:41.982",) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_OUTPUTS)
@pytest.mark.parametrize("file", ["gpu.log", "gpu.csv"])
def test_other_outputs_are_named_with_the_command_that_logs(tmp_path, capsys, name, file):
    told = refusal(made(tmp_path, file, *OTHER_OUTPUTS[name]), capsys)
    assert "--query-gpu" in told
    assert "--map" not in told


@pytest.mark.parametrize("power", ["[N/A]", "[Not Supported]", "[Unknown Error]", "0.00 W"])
def test_power_that_is_missing_throughout_is_said_at_once(tmp_path, capsys, power):
    columns = ("index", POWER, "utilization.gpu [%]")
    rows = {s + i / 100: f"{i}, {power}, 95 %" for s in range(20) for i in range(2)}
    path = made(tmp_path, "gpu.csv", *smi(rows, *columns))
    assert "power.draw.instant" in refusal(path, capsys)
    rows |= dict.fromkeys(range(20), "0, 300.00 W, 95 %")
    read = read_import(made(tmp_path, "gpu.csv", *smi(rows, *columns)))
    assert (gpus(read), verdicts(read)) == ([2], {"partial"})
    assert any("GPU 1" in note for note in read.runs[0].record.notes)
    assert joules(read) == [pytest.approx(300 * 19, rel=0.01)]
    alone = read_import(tmp_path / "gpu.csv", devices=["1"])
    assert (joules(alone), verdicts(alone)) == ([0.0], {"unavailable"})


def test_parts_that_name_gpus_in_different_ways_are_not_two_gpus(tmp_path, capsys):
    first = smi(dict.fromkeys(range(20), "0, 300.00 W"), "index", POWER)
    second = smi(dict.fromkeys(range(20, 40), "GPU-aa, 300.00 W"), "uuid", POWER)
    assert "line 23" in refusal(made(tmp_path, "gpu.csv", *first, *second), capsys)
    third = smi(dict.fromkeys(range(20, 40), "300.00 W"), POWER)
    read = read_import(made(tmp_path, "gpu.csv", *first, *third))
    assert (gpus(read), left_out(read)) == ([1], {"no index or uuid of the GPU": 20})


def test_logs_of_two_machines_in_one_file_are_not_one_gpu(tmp_path, capsys):
    first = smi(dict.fromkeys(range(20), "0, 300.00 W"), "index", POWER)
    second = smi({s + 0.3: "0, 200.00 W" for s in range(20)}, "index", POWER)
    assert "second log" in refusal(made(tmp_path, "gpu.csv", *first, *second), capsys)
    files = [made(tmp_path, "a.csv", *first), made(tmp_path, "b.csv", *second)]
    with pytest.raises(BadInput, match="uuid"):
        read_import(files)
    named = [
        [line.replace(" 0,", f" GPU-{host},") for line in log]
        for host, log in (("a", first), ("b", second))
    ]
    read = read_import(made(tmp_path, "gpu.csv", *named[0], *named[1]))
    assert (gpus(read), verdicts(read)) == ([2], {"ok"})


@pytest.mark.parametrize("apart_s", [0.001, 0.3, 0.45])
def test_machines_that_write_one_file_at_the_same_time_are_not_one_gpu(tmp_path, capsys, apart_s):
    rows = dict.fromkeys(range(20), "0, 300.00 W")
    both = dict(sorted({**rows, **{s + apart_s: "0, 200.00 W" for s in rows}}.items()))
    path = made(tmp_path, "gpu.csv", *smi(both, "index", POWER))
    assert "GPU 0 has several readings in each tick" in refusal(path, capsys)
    named = {s: f"GPU-{'a' if s % 1 < 1e-6 else 'b'}, {row[3:]}" for s, row in both.items()}
    read = read_import(made(tmp_path, "gpu.csv", *smi(named, "uuid", POWER)))
    assert (gpus(read), joules(read)) == ([2], [pytest.approx(500 * 19, rel=0.05)])


def test_a_log_that_is_in_the_file_twice_counts_once(tmp_path):
    log = smi({s: f"0, {300 + s}.00 W" for s in range(20)}, "index", POWER)
    once = read_import(made(tmp_path, "gpu.csv", *log))
    twice = read_import(made(tmp_path, "gpu.csv", *log, *log))
    assert joules(twice) == joules(once)
    assert left_out(twice) == {"an equal reading of the same time follows": 20}


def test_a_clock_that_goes_back_is_never_ok(tmp_path):
    rows = [
        f"2026/09/11 04:{19 + s // 60}:{s % 60:02}.000, 0, {300 + s % 2}.00 W"
        for s in (*range(60), *range(30, 90))
    ]
    rows[60:] = [row.replace(".000,", ".400,") for row in rows[60:]]
    read = read_import(made(tmp_path, "gpu.csv", f"timestamp, index, {POWER}", *rows))
    assert (gpus(read), verdicts(read)) == ([1], {"suspect"})


def mi250(power: str, gcds: int = 4) -> list[str]:
    """Return a log of boards whose second GPU has no power of its own."""
    rows = [f"{1_722_959_100 + s},{i},{95 - i % 2},{power if i % 2 else 500 + i}"
            for s in range(30) for i in range(gcds)]  # fmt: skip
    return ["timestamp,gpu,gfx_activity,socket_power", *rows]


@pytest.mark.parametrize("power", ["N/A", "0"])
def test_power_of_a_board_is_not_that_of_one_of_its_gpus(tmp_path, power):
    path = made(tmp_path, "amd.csv", *mi250(power))
    known = {"hardware": "AMD Instinct MI250X"}
    board = read_import(path, **known)
    assert (gpus(board), verdicts(board)) == ([4], {"ok"})
    assert joules(board) == [pytest.approx(1002 * 29)]
    assert verdicts(read_import(path)) == {"partial"}  # no word on the board
    for settings in (known, {}):
        first = read_import(path, devices=["0"], **settings)
        assert (joules(first), verdicts(first)) == ([pytest.approx(500 * 29)], {"suspect"})
        second = read_import(path, devices=["3"], **settings)
        assert verdicts(second) == {"unavailable"}
        assert "GPU 2" in second.runs[0].windows[0]["energy_reason"]
    only = read_import(made(tmp_path, "one.csv", *mi250("N/A", 1)), **known)
    assert verdicts(only) == {"suspect"}


def test_what_no_window_covers_is_said(tmp_path, capsys):
    busy = {*range(10, 40), *range(60, 64)}
    rows = {s: "0, 300.00 W, 95 %" if s in busy else "0, 60.00 W, 0 %" for s in range(80)}
    path = made(tmp_path, "gpu.csv", *smi(rows, "index", POWER, "utilization.gpu [%]"))
    read = read_import(path)
    noted = "\n".join(read.runs[0].record.notes)
    assert "1 phase of less than 10 s left out" in noted
    assert "49 readings left out: in no window" in noted
    assert main(["import", str(path), "--store", str(tmp_path / "store")]) == 0
    told = capsys.readouterr()
    assert told.err.count("left out") == 2
    assert "left out" not in told.out
    at = "2026-09-11T04:"
    marked = read_import(path, windows=[f"{at}19:10..{at}19:39", f"{at}30:00..{at}31:00"])
    assert {
        "gpu.csv: 1 window without a reading",
        "gpu.csv: 50 readings left out: in no window",
    } <= {*marked.runs[0].record.notes}


def test_power_in_another_unit_is_refused(tmp_path, capsys):
    log = smi(dict.fromkeys(range(20), "0, 250000"), "index", "power.draw")
    assert "mW" in refusal(made(tmp_path, "gpu.csv", *log), capsys)
    log = smi({s: f"0, {250 if s != 7 else 250000}" for s in range(20)}, "index", "power.draw")
    assert verdicts(read_import(made(tmp_path, "gpu.csv", *log))) == {"implausible"}


def test_windows_that_overlap_are_refused(tmp_path):
    log = smi(dict.fromkeys(range(50), "0, 250.00 W"), "index", POWER)
    at, path = "2026-09-11T04:19:", made(tmp_path, "gpu.csv", *log)
    with pytest.raises(BadInput, match="overlap by 10 s"):
        read_import(path, windows=[f"{at}00..{at}30", f"{at}20..{at}40"])
    assert joules(read_import(path, windows=[f"{at}00..{at}20", f"{at}20..{at}40"])) == [10_000]
