"""Live streams: complete rows survive damage at the end of the file."""

import math
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattlaw.measure.devices.meter import Sample
from wattlaw.store.live import LiveWriter, read_live
from wattlaw.store.schema import SAMPLES, WINDOWS
from wattlaw.store.streams import Window

COLUMNS = Sample._fields
FLOATS = st.none() | st.floats(allow_nan=False)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "device": TEXTS,
            "kind": st.sampled_from(["gpu", "cpu"]),
            "t_ns": st.integers(-(2**62), 2**62),
            "power_w": FLOATS,
            "energy_j": FLOATS,
            "power_source": st.none() | st.just("measured"),
            "mem_used_bytes": st.none() | st.integers(0, 2**62),
        }
    ).map(lambda values: Sample(**values))
)


def written(path: Path, rows: int = 12) -> bytes:
    with LiveWriter(path, COLUMNS) as stream:
        stream.append(Sample("GPU-0", "gpu", n, power_w=100.0 + n) for n in range(rows))
    return path.read_bytes()


def times(table: pa.Table) -> list[int]:
    return table["t_ns"].to_pylist()


def test_stream_rows_have_the_columns_of_the_tables():
    assert {"host", *COLUMNS} == {*SAMPLES.names}
    assert [*Window._fields] == WINDOWS.names


@given(ROWS)
def test_rows_come_back_as_they_were_written_also_missing_ones(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("live") / "stream"
    with LiveWriter(path, COLUMNS) as stream:
        stream.append(rows)
    table = read_live(path, SAMPLES, "here")
    assert table.schema == SAMPLES
    assert table.drop_columns(["host"]).select(COLUMNS).to_pylist() == [r._asdict() for r in rows]


def test_an_invalid_number_does_not_become_missing(tmp_path):
    with LiveWriter(tmp_path / "w", Window._fields) as stream:
        stream.append([Window("a", 0, "train", False, 1, 2.0, loss=math.nan, metric=math.inf)])
    (row,) = read_live(tmp_path / "w", WINDOWS, "here").to_pylist()
    assert math.isnan(row["loss"])
    assert (row["metric"], row["samples"], row["warmup"]) == (math.inf, None, False)


def test_a_stream_cut_at_any_byte_gives_the_rows_before_the_cut(tmp_path):
    whole = written(tmp_path / "whole")
    torn = tmp_path / "torn"
    for cut in range(len(whole) + 1):
        torn.write_bytes(whole[:cut])
        rows = max(0, whole[:cut].count(b"\n") - 1)
        assert times(read_live(torn, SAMPLES, "here")) == [*range(rows)]


@given(st.data())
def test_a_stream_whose_tail_is_garbage_keeps_every_row_before_it(tmp_path_factory, data):
    """Garbage after the cut or a few bytes changed: never an error, never a crash."""
    folder = tmp_path_factory.mktemp("live")
    whole = written(folder / "whole")
    start = data.draw(st.integers(whole.index(b"\n") + 1, len(whole)))
    garbage = data.draw(
        st.binary(max_size=300)
        | st.just(bytes(len(whole) - start))
        | st.binary(min_size=1, max_size=8).map(lambda some: some + whole[start + len(some) :])
    )
    (folder / "torn").write_bytes(whole[:start] + garbage)
    table = read_live(folder / "torn", SAMPLES, "here")
    table.validate(full=True)
    kept = whole[:start].count(b"\n") - 1
    assert times(table)[:kept] == [*range(kept)]
    assert len(table.to_pylist()) == len(table)


def test_an_existing_stream_is_not_overwritten(tmp_path):
    written(tmp_path / "stream")
    with pytest.raises(FileExistsError):
        LiveWriter(tmp_path / "stream", COLUMNS)


def test_a_stream_of_other_columns_gives_no_rows(tmp_path):
    written(tmp_path / "stream")
    assert read_live(tmp_path / "stream", WINDOWS, "here").equals(WINDOWS.empty_table())


def test_a_killed_writer_loses_no_appended_rows(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from wattlaw.measure.devices.meter import Sample\n"
        "from wattlaw.store.live import LiveWriter\n"
        "stream = LiveWriter(Path(sys.argv[1]), Sample._fields)\n"
        "for n in range(10**9):\n"
        "    stream.append([Sample('x', 'cpu', n)]); print(n, flush=True)\n"
    )
    path = tmp_path / "stream"
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(200):
        said = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    said = max([said, *map(int, writer.communicate()[0].split("\n")[:-1])])
    rows = times(read_live(path, SAMPLES, "here"))
    assert rows == list(range(len(rows)))
    assert len(rows) > said


def test_neither_the_sampler_nor_a_writer_of_windows_needs_pyarrow_or_torch():
    code = (
        "import sys, wattlaw.measure.telemetry.sampler, wattlaw.store.live\n"
        "print({'pyarrow', 'pandas', 'torch', 'numpy'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
