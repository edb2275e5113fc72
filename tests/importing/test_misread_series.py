"""Inputs that were once misread without a word, with their right values; and others of each kind.

``misread_file`` has the reported inputs. Those made here have other numbers, so that each kind is
tested without public data too.
"""

import json
from pathlib import Path

import pytest

from public_data import misread_file
from wattlaw.api.imports import Import, read_import
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput


def made(folder: Path, name: str, *lines: str, encoding: str = "utf-8") -> Path:
    """Write a file of lines."""
    path = folder / name
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return path


def joules(read: Import, column: str = "gpu_energy_j") -> list[float]:
    """Return the energy of each run, the sum of its windows."""
    return [sum(row.get(column) or 0.0 for row in run.windows) for run in read.runs]


def gpus(read: Import) -> list[int]:
    return [run.record.spec.setting.gpus for run in read.runs]


def verdicts(read: Import) -> set[str]:
    return {row["energy_verdict"] for run in read.runs for row in run.windows}


def left_out(read: Import) -> dict[str, int]:
    """Return how many rows are left out by reason; the notes of the runs say so too."""
    notes = {note for run in read.runs for note in run.record.notes}
    reasons = {}
    for file in read.files:
        for each in file.left_out:
            assert any(note.endswith(str(each)) for note in notes)
            reasons[each.reason] = each.count
    return reasons


def refusal(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which a file is refused, with exit code 2 and nothing written."""
    store = path.parent / "refused"
    assert main(["import", str(path), "--store", str(store), *arguments]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert path.name in told[0]
    assert not store.exists()
    return told[0]


# nvidia-smi and amd-smi


def smi(rows: dict[float, str], *columns: str, sep: str = ", ", at: str = "04:19:") -> list[str]:
    """Return a log of nvidia-smi: the cells of each row by its seconds."""
    times = {s: f"2026/09/11 {at[:3]}{19 + int(s // 60):02}:{s % 60:06.3f}" for s in rows}
    return [sep.join(("timestamp", *columns)), *(times[s] + sep + rows[s] for s in rows)]


POWER = "power.draw [W]"


def test_two_gpus_in_a_tick_are_never_one(capsys):
    path = misread_file("smi_two_gpus_no_index.csv")
    with pytest.raises(BadInput, match="index or uuid"):
        read_import(path)
    read = read_import(path, map="gpus=@2")
    assert (gpus(read), joules(read)) == ([2], [pytest.approx(6002, rel=1e-3)])


@pytest.mark.parametrize("apart_s", [0.0, 0.001, 0.017, 0.09])
@pytest.mark.parametrize("watts", [(250, 120), (250, 250), (310, 90, 200, 200), (70,) * 8])
def test_gpus_without_an_id_are_refused_or_as_many_as_the_user_says(
    tmp_path, capsys, apart_s, watts
):
    cells = [f"{each}.00 W" for each in watts]
    rows = [row for s in range(20) for row in
            smi({s + apart_s * i: cell for i, cell in enumerate(cells)} if apart_s else {s: ""},
                POWER)[1:]]  # fmt: skip
    if not apart_s:
        rows = [f"2026/09/11 04:19:{s:02}.000, {cell}" for s in range(20) for cell in cells]
    path = made(tmp_path, "gpu.csv", f"timestamp, {POWER}", *rows)
    assert "index or uuid" in refusal(path, capsys)
    assert "index or uuid" in refusal(path, capsys, "--map", "gpus=@1")
    read = read_import(path, map=f"gpus=@{len(watts)}")
    assert gpus(read) == [len(watts)]
    assert joules(read) == [pytest.approx(19 * sum(watts), rel=0.04)]


def test_gpus_whose_ticks_follow_each_other_are_seen_by_their_power(tmp_path, capsys):
    rows = {s / 50: f"{(300, 200)[s % 2] + s % 3}.00 W" for s in range(60)}
    assert "index or uuid" in refusal(made(tmp_path, "gpu.csv", *smi(rows, POWER)), capsys)


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


def test_gpus_of_two_names_without_an_id_are_not_one(tmp_path, capsys):
    rows = {s / 2: f"{('A100', 'V100')[s % 2]}, 250.00 W" for s in range(60)}
    path = made(tmp_path, "gpu.csv", *smi(rows, "name", POWER))
    assert "index or uuid" in refusal(path, capsys)


def test_an_id_that_is_missing_throughout_is_none(tmp_path, capsys):
    rows = {s + i / 200: f"[N/A], {w}.00 W" for s in range(20) for i, w in enumerate((300, 200))}
    path = made(tmp_path, "gpu.csv", *smi(rows, "serial", POWER))
    assert "index or uuid" in refusal(path, capsys)


def test_a_log_in_utf_16_is_read(tmp_path):
    assert joules(read_import(misread_file("smi_utf16.csv"))) == [pytest.approx(3300)]


WRITTEN = {
    "UTF-16": ({s: f"0, {s % 2 + 250}.00 W, 95 %" for s in range(21)}, ", ", "utf-16"),
    "UTF-8 with a mark": ({s: f"0, {s % 2 + 250}.00 W, 95 %" for s in range(21)}, ", ",
                          "utf-8-sig"),
    "semicolons": ({s: f"0;{s % 2 + 250},00 W;95 %" for s in range(21)}, ";", "utf-8"),
    "semicolons, three decimals": ({s: f"0;{s % 2 + 250},000;95" for s in range(21)}, ";", "utf-8"),
    "tabs": ({s: f"0\t{s % 2 + 250}.00 W\t95 %" for s in range(21)}, "\t", "utf-8"),
    "decimal commas": ({s: f"0, {s % 2 + 250},00 W, 95 %" for s in range(21)}, ", ", "utf-8"),
    "quoted decimal commas": ({s: f'0,"{s % 2 + 250},00 W",95 %' for s in range(21)}, ",", "utf-8"),
    "kilowatts": ({s: f"0, 0.{s % 2 + 250} kW, 95 %" for s in range(21)}, ", ", "utf-8"),
    "milliwatts": ({s: f"0, {s % 2 + 250}000 mW, 95 %" for s in range(21)}, ", ", "utf-8"),
}  # fmt: skip


@pytest.mark.parametrize("time", ["dot", "comma", "day", "ms", "us", "ns", "s with a comma"])
@pytest.mark.parametrize("how", WRITTEN)
def test_a_log_is_read_however_it_is_written(tmp_path, how, time):
    rows, sep, encoding = WRITTEN[how]
    lines = smi(rows, "index", POWER, "utilization.gpu [%]", sep=sep)
    seconds = 1_789_100_341
    for number, s in enumerate(rows, 1):
        day, cells = lines[number].split(sep, 1)
        ms = 1000 * (seconds + int(s)) + 500
        written = {"dot": day, "comma": day.replace(".", ","), "ms": str(ms), "us": f"{ms}000",
                   "day": day.replace("2026/09/11", "11.09.2026"), "ns": f"{ms}000000",
                   "s with a comma": f"{ms // 1000},{ms % 1000}"}  # fmt: skip
        lines[number] = written[time] + sep + cells
    read = read_import(made(tmp_path, "gpu.csv", *lines, encoding=encoding))
    assert (gpus(read), verdicts(read)) == ([1], {"ok"})
    assert joules(read) == [pytest.approx(20 * 250.5, rel=1e-3)]


def test_a_banner_and_repeated_headers_are_no_rows():
    read = read_import(misread_file("amd_smi_watch_banner.csv"))
    assert gpus(read) == [2]
    for device, joules_of_it in (("0", 128.075), ("1", 129.505)):
        alone = read_import(misread_file("amd_smi_watch_banner.csv"), devices=[device])
        assert joules(alone) == [pytest.approx(joules_of_it, abs=1e-3)]


def test_a_banner_of_another_log_is_counted(tmp_path):
    rows = [row for s in range(12) for row in
            ("", "timestamp,gpu,socket_power", f"{1_722_959_100 + s},0,200",
             f"{1_722_959_100 + s},1,300")]  # fmt: skip
    read = read_import(made(tmp_path, "amd.csv", "Press q to stop", "", "(rocm 6.2)", *rows))
    assert left_out(read) == {"before the header": 2}
    assert (gpus(read), joules(read)) == ([2], [pytest.approx(500 * 11)])


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
    "pmon": ("# gpu         pid   type     sm    mem    enc    dec    command",
             "# Idx           #    C/G      %      %      %      %    name",
             "    0       1234     C     90     10      -      -    python"),
    "nvidia-smi": ("Thu Nov 26 11:55:38 2026       ", "+" + "-" * 77 + "+",
                   "| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2  |"),
    "-q": ("", "==============NVSMI LOG==============", "", "Timestamp : Fri May 31 10:39:13 2024",
           "GPU 00000000:01:00.0", "    Power Draw : 35.10 W"),
    "-q -x": ('<?xml version="1.0" ?>', '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
              "<nvidia_smi_log>", "<timestamp>Fri May 31 10:39:13 2024</timestamp>"),
    "-L": ("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5a8f)",),
    "noheader": ("2026/09/11 04:19:41.982, 0, 300.00 W", "2026/09/11 04:19:42.982, 0, 300.00 W"),
    "noheader, nounits": ("2026/09/11 04:19:41.982, 300.00", "2026/09/11 04:19:42.982, 300.00"),
    "noheader, index first": ("0, 2026/09/11 04:19:41.982, 300.00",) * 2,
    "noheader, time last": ("NVIDIA A100, 300.00 W, 2026/09/11 04:19:41.982",) * 2,
    "amd-smi --json": ('[{"gpu": 0, "power": {"socket_power": {"value": 90, "unit": "W"}}}]',),
    "rocm-smi --csv": ("device,Average Graphics Package Power (W)", "card0,35.0"),
    "rocm-smi --json": ('{"card0": {"Average Graphics Package Power (W)": "35.0"}}',),
    "rocm-smi": ("", "============================ ROCm System Management Interface =============",
                 "GPU  Temp   AvgPwr"),
    "amd-smi monitor": ("GPU  POWER  GPU_TEMP  MEM_TEMP  GFX_UTIL", "  0  137 W     45 °C"),
    "amd-smi monitor --watch": ("'CTRL' + 'C' to stop watching output:",
                                "TIMESTAMP   GPU  POWER  GPU_TEMP", "1722959154  0  137 W   45 °C"),
    "amd-smi metric": ("GPU: 0", "    POWER:", "        SOCKET_POWER: 90 W"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_OUTPUTS)
@pytest.mark.parametrize("file", ["gpu.log", "gpu.csv"])
def test_other_outputs_are_named_with_the_command_that_logs(tmp_path, capsys, name, file):
    told = refusal(made(tmp_path, file, *OTHER_OUTPUTS[name]), capsys)
    assert "--csv --watch" in told if "amd" in name or "rocm" in name else "--query-gpu" in told
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


def test_a_field_that_is_missing_gives_way_to_the_next(tmp_path):
    rows = dict.fromkeys(range(20), "0, [N/A], 240.00 W")
    log = smi(rows, "index", "power.draw.instant [W]", POWER)
    assert joules(read_import(made(tmp_path, "gpu.csv", *log))) == [pytest.approx(240 * 19)]


def test_a_second_part_without_power_is_counted(tmp_path):
    first = smi(
        dict.fromkeys(range(30), "0, 300.00 W, 95 %"), "index", POWER, "utilization.gpu [%]"
    )
    second = smi(dict.fromkeys(range(31, 50), "0, 95 %"), "index", "utilization.gpu [%]")
    read = read_import(made(tmp_path, "gpu.csv", *first, *second))
    assert left_out(read) == {"no power": 19}
    assert joules(read) == [pytest.approx(300 * 29, rel=0.01)]


def test_a_second_part_without_utilisation_is_no_lost_phase(tmp_path):
    first = smi({s: f"0, {300 if s > 4 else 60}.00 W, {95 if s > 4 else 0} %" for s in range(30)},
                "index", POWER, "utilization.gpu [%]")  # fmt: skip
    second = smi({s: f"0, {310 if s < 55 else 60}.00 W" for s in range(30, 59)}, "index", POWER)
    read = read_import(made(tmp_path, "gpu.csv", *first, *second))
    assert joules(read) == [pytest.approx(300 * 25 + 310 * 25, rel=0.03)]


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
    named = [[line.replace(" 0,", f" GPU-{host},") for line in log]
             for host, log in (("a", first), ("b", second))]  # fmt: skip
    read = read_import(made(tmp_path, "gpu.csv", *named[0], *named[1]))
    assert (gpus(read), verdicts(read)) == ([2], {"ok"})


@pytest.mark.parametrize("apart_s", [0.001, 0.05, 0.3, 0.45, 0.6])
def test_machines_that_write_one_file_at_the_same_time_are_not_one_gpu(tmp_path, capsys, apart_s):
    rows = dict.fromkeys(range(20), "0, 300.00 W")
    both = dict(sorted({**rows, **{s + apart_s: "0, 200.00 W" for s in rows}}.items()))
    path = made(tmp_path, "gpu.csv", *smi(both, "index", POWER))
    assert "GPU 0 has several readings in each tick" in refusal(path, capsys)
    named = {s: f"GPU-{'a' if s % 1 < 1e-6 else 'b'}, {row[3:]}" for s, row in both.items()}
    read = read_import(made(tmp_path, "gpu.csv", *smi(named, "uuid", POWER)))
    assert (gpus(read), joules(read)) == ([2], [pytest.approx(500 * 19, rel=0.05)])


def test_a_time_that_has_two_meanings_is_named_with_one_that_is_read(tmp_path, capsys):
    log = smi(dict.fromkeys(range(20), "0, 300.00 W"), "index", POWER)
    path = made(tmp_path, "gpu.csv", *(line.replace("2026/09/11", "09/11/2026") for line in log))
    assert "no time such as 2026-01-31 12:00:00" in refusal(path, capsys)


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_an_empty_file_is_named_as_one(tmp_path, capsys, content):
    path = tmp_path / "gpu.csv"
    path.write_bytes(content)
    assert "the file is empty" in refusal(path, capsys)


def test_a_log_that_is_in_the_file_twice_counts_once(tmp_path):
    log = smi({s: f"0, {300 + s}.00 W" for s in range(20)}, "index", POWER)
    once = read_import(made(tmp_path, "gpu.csv", *log))
    twice = read_import(made(tmp_path, "gpu.csv", *log, *log))
    assert joules(twice) == joules(once)
    assert left_out(twice) == {"an equal reading of the same time follows": 20}


def test_a_clock_that_goes_back_is_never_ok(tmp_path):
    rows = [f"2026/09/11 04:{19 + s // 60}:{s % 60:02}.000, 0, {300 + s % 2}.00 W"
            for s in (*range(60), *range(30, 90))]  # fmt: skip
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


# DCGM


def dcgm(
    watts: float, seconds: range, uuid: str | None = "GPU-1", metric: str = "POWER_USAGE", **labels
) -> list[str]:
    """Return the values of a GPU as lines of Prometheus text."""
    named = {"gpu": "0", **({"UUID": uuid} if uuid else {}), **labels}
    text = ",".join(f'{name}="{value}"' for name, value in named.items())
    time_s = 1_717_920_000
    return [f"DCGM_FI_DEV_{metric}{{{text}}} {watts} {1000 * (time_s + s)}" for s in seconds]


def hosts(read: Import) -> set[str]:
    return {row["host"] for run in read.runs for row in run.windows}


def test_a_gpu_is_one_whatever_its_exporter_is_called():
    read = read_import(misread_file("dcgm_exporter_restart.txt"))
    assert "1 GPU, 12 readings" in read.files[0].description
    assert (gpus(read), len(hosts(read)), verdicts(read)) == ([1], 1, {"ok"})
    assert joules(read) == [pytest.approx(16_500)]
    assert read.runs[0].record.spec.nodes == 1


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


def test_the_label_of_the_node_names_it(tmp_path):
    lines = dcgm(250, range(60), Hostname="dx-aaaaa", instance="10.0.0.5:9400", node="n7")
    assert hosts(read_import(made(tmp_path, "dcgm.txt", *lines))) == {"n7"}


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


def test_values_that_are_none_are_counted(tmp_path):
    values = [[1_717_920_000 + s, "NaN" if s % 10 == 3 else "250"] for s in range(60)]
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-1", "gpu": "0"}
    result = [{"metric": metric, "values": values}, "nothing", {"metric": metric, "values": [[1]]}]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    read = read_import(made(tmp_path, "dcgm.json", text))
    assert left_out(read) == {"a blank value": 6, "no pair of time and value": 2}
    assert joules(read) == [pytest.approx(250 * 59)]


# CodeCarbon

EMISSIONS = "timestamp,project_name,run_id,duration,emissions,energy_consumed,gpu_energy,gpu_count"


def emissions(*rows: tuple[str, str, str, float, float], sep: str = ",") -> list[str]:
    """Return a file of rows: time, project, run_id, seconds, kWh of the GPUs."""
    lines = (
        (f"2026-08-12T{time}", project, run_id, str(s), "0.1", str(kwh), str(kwh), "1")
        for time, project, run_id, s, kwh in rows
    )
    return [EMISSIONS.replace(",", sep), *(sep.join(cells) for cells in lines)]


def test_a_run_id_that_is_none_does_not_join_processes():
    read = read_import(misread_file("codecarbon_run_id_none.csv"))
    assert sorted(joules(read)) == pytest.approx([18_000, 36_000, 72_000])
    assert left_out(read) == {}


@pytest.mark.parametrize(
    "run_id", ["None", "", "nan", "null", "0", "job", "my run", "5b0fa12a-3dd7"]
)
def test_processes_of_one_run_id_are_those_that_begin_at_other_times(tmp_path, run_id):
    path = made(tmp_path, "emissions.csv", *emissions(
        ("10:02:00", "job", run_id, 120.5, 0.02), ("10:04:03", "job", run_id, 121.0, 0.03),
        ("12:00:00", "job", run_id, 60.0, 0.01)))  # fmt: skip
    assert sorted(joules(read_import(path))) == pytest.approx([36_000, 72_000, 108_000])


def test_updates_of_a_process_count_once_whatever_its_id(tmp_path):
    for run_id in ("", "x", "5b0fa12a-3dd7-45bb-9766-cc326314d9f1"):
        path = made(tmp_path, "emissions.csv", *emissions(
            ("10:02:00", "job", run_id, 60.2, 0.01), ("10:03:00", "job", run_id, 120.3, 0.02),
            ("10:04:01", "job", run_id, 180.9, 0.03)))  # fmt: skip
        assert joules(read_import(path)) == [pytest.approx(0.03 * 3.6e6)]


def test_parts_of_one_run_id_that_follow_each_other_are_all_read(tmp_path):
    uuid = "5b0fa12a-3dd7-45bb-9766-cc326314d9f1"
    path = made(tmp_path, "emissions.csv", *emissions(
        ("10:01:00", "job", uuid, 60.2, 0.01), ("10:02:00", "job", uuid, 60.3, 0.01),
        ("10:05:00", "job", uuid, 30.0, 0.005)))  # fmt: skip
    read = read_import(path)
    assert (sum(joules(read)), left_out(read)) == (pytest.approx(0.025 * 3.6e6), {})


def test_tasks_of_a_process_add_up():
    read = read_import(misread_file("codecarbon_tasks.csv"))
    assert joules(read) == [pytest.approx(2595.57, abs=0.01)]
    assert "1 tracker in 1 run, times in UTC" in read.files[0].description
    assert sum(row["duration_s"] for row in read.runs[0].windows) == pytest.approx(90.525, abs=1e-3)


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


def test_glued_lines_are_counted_and_named():
    read = read_import(misread_file("codecarbon_glued_row.csv"))
    assert left_out(read) == {"another number of cells than the header": 1}
    assert joules(read) == [pytest.approx(0.04 * 3.6e6)]


def test_versions_appended_to_one_file_are_all_read(tmp_path):
    first = emissions(("10:02:00", "a", "r1", 60.0, 0.01), ("10:05:00", "b", "r2", 60.0, 0.02))
    head, *second = emissions(("11:02:00", "c", "r3", 60.0, 0.03))
    torn = first[1].rsplit(",", 2)[0]
    path = made(tmp_path, "emissions.csv", *first, torn, f"{head},on_cloud", f"{second[0]},N",
                first[1])  # fmt: skip
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


def test_an_energy_of_zero_is_not_measured(tmp_path):
    rows = [("10:02:00", "a", "r1", 60.0, 0.0), ("11:02:00", "b", "r2", 60.0, 0.01)]
    read = read_import(made(tmp_path, "emissions.csv", *emissions(*rows)))
    assert [run.windows[0].get("gpu_energy_j") for run in read.runs] == [None, 36_000]
    assert read.runs[0].windows[0]["energy_verdict"] == "unavailable"


# Zeus


def zeus(*windows: tuple[str, float, float], gpus: int = 1, clock_s: float = 1.7e9) -> list[str]:
    """Return a log of windows: name, start and seconds; each GPU draws 200 W."""
    energies = ",".join(f"gpu{i}_energy" for i in range(gpus))
    head = f"start_time,window_name,elapsed_time,{energies}"
    return [head, *(f"{clock_s + start},{name},{s}" + f",{200.0 * s}" * gpus
                    for name, start, s in windows)]  # fmt: skip


EPOCHS = [("epoch", 10.0, 50.0), ("epoch", 60.0, 50.0), ("epoch", 110.0, 50.0)]


def phases(read: Import) -> list[tuple[str, float]]:
    return [(row["phase"], row["duration_s"]) for run in read.runs for row in run.windows]


@pytest.mark.parametrize("name", ["training", "total", "train", "epochs_all", "whole run"])
@pytest.mark.parametrize("clock_s", [1.7e9, 5e5])
def test_an_outer_window_is_no_epoch(tmp_path, name, clock_s):
    path = made(tmp_path, "z.csv", *zeus(*EPOCHS, (name, 5.0, 160.0), clock_s=clock_s))
    read = read_import(path)
    assert phases(read) == [("train", 50.0)] * 3
    assert [row["epoch"] for row in read.runs[0].windows] == [0, 1, 2]
    assert joules(read) == [pytest.approx(200 * 150)]
    assert left_out(read) == {"an outer window: it contains windows that count": 1}


def test_windows_inside_epochs_do_not_count_twice(tmp_path):
    steps = [(f"step_{i}", 10.0 + 5 * i, 4.9) for i in range(30)]
    steps += [("train_forward", 11.0, 2.0), ("eval", 55.0, 4.0)]
    read = read_import(made(tmp_path, "z.csv", *zeus(*steps, *EPOCHS)))
    assert phases(read) == [("train", 50.0)] * 3
    assert left_out(read) == {"inside a window that counts, or overlaps it": 32}


def test_evaluations_between_epochs_are_kept_in_the_order_of_time(tmp_path):
    windows = [("epoch_1", 60.0, 50.0), ("val_epoch_0", 50.01, 9.0), ("epoch_0", 0.0, 50.02)]
    read = read_import(made(tmp_path, "z.csv", *zeus(*windows)))
    assert phases(read) == [("train", 50.02), ("evaluate", 9.0), ("train", 50.0)]
    assert [row["epoch"] for row in read.runs[0].windows] == [0, 0, 1]


def test_steps_inside_an_outer_window_are_the_steps(tmp_path):
    steps = [(f"train_step_{i}", 10.0 + i, 0.02 if i % 2 else 0.98) for i in range(10)]
    read = read_import(made(tmp_path, "z.csv", *zeus(*steps, ("training", 9.0, 20.0))))
    assert {phase for phase, _ in phases(read)} == {"steps"}
    assert (len(phases(read)), sum(left_out(read).values())) == (10, 1)


def test_parts_of_a_process_count_by_their_whole(tmp_path):
    windows = [("forward", 1.0, 10.0), ("backward", 11.0, 20.0), ("total", 0.0, 40.0)]
    read = read_import(made(tmp_path, "z.csv", *zeus(*windows)))
    assert (phases(read), joules(read)) == ([("run", 40.0)], [8000.0])


def test_windows_of_which_none_can_be_read_are_named_with_the_reason(tmp_path, capsys):
    path = made(tmp_path, "z.csv", "start_time,window_name,elapsed_time,gpu0_energy",
                "1700000000,epoch, 1,100,5000")  # fmt: skip
    assert "line 2 left out: another number of cells" in refusal(path, capsys)


def test_repeated_overlapping_and_torn_windows_are_counted(tmp_path):
    late = ("epoch", 130.0, 60.0)
    log = zeus(*EPOCHS, EPOCHS[1], late)
    read = read_import(made(tmp_path, "z.csv", *log, log[1][:-2].replace("200", "-200"), "1,e"))
    assert joules(read) == [pytest.approx(200 * 150)]
    assert sum(left_out(read).values()) == 4


def test_windows_of_another_number_of_gpus_are_another_run(tmp_path):
    log = [*zeus(*EPOCHS), *zeus(("epoch", 500.0, 30.0), gpus=4)]
    read = read_import(made(tmp_path, "z.csv", *log))
    assert (gpus(read), joules(read)) == ([1, 4], [30_000.0, 24_000.0])


def test_power_logs_of_several_gpus_are_not_one_gpu(tmp_path):
    files = [made(tmp_path, f"{name}.power.log", "Time,Power",
                  *(f"2026-01-31 12:00:{s:02}.5,{1000 * watts}" for s in range(30)))
             for name, watts in (("bs32+gpu0", 200), ("bs32+gpu1", 300))]  # fmt: skip
    read = read_import(files)
    assert (gpus(read), joules(read)) == ([2], [pytest.approx(500 * 29)])


# Time series of any format


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


def test_windows_without_any_reading_are_refused(tmp_path, capsys):
    path = made(tmp_path, "gpu.csv", *smi(dict.fromkeys(range(20), "0, 300.00 W"), "index", POWER))
    assert "--timezone" in refusal(path, capsys, "--window", "2026-09-12T04:19:00..1789200000")


def test_devices_that_are_left_out_are_said(tmp_path):
    lines = [line for i in range(3) for line in dcgm(250, range(60), f"GPU-{i}")]
    read = read_import(made(tmp_path, "dcgm.txt", *lines), devices=["GPU-1"])
    (note,) = (note for note in read.runs[0].record.notes if "--device" in note)
    assert "120 readings left out: of GPU-0, GPU-2" in note


def test_two_hosts_have_their_own_phases(tmp_path):
    lines = [line for host, busy in (("n1", range(10, 40)), ("n2", range(60, 90)))
             for s in range(100)
             for line in dcgm(300 if s in busy else 60, range(s, s + 1), None,
                              Hostname=host)]  # fmt: skip
    read = read_import(made(tmp_path, "dcgm.txt", *lines))
    assert {row["start_ns"] for row in read.runs[0].windows} == {
        1_717_920_010 * 10**9, 1_717_920_060 * 10**9}  # fmt: skip


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
