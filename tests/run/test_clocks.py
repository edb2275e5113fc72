"""Clocks of several hosts, compared: what is computed, and nodes that talk to each other."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import agent, environment, free_port, record_of, several
from ranks import spec_of
from wattlaw.running.finish import finish
from wattlaw.running.training.clocks import ROUNDS, Clocks, Endpoint, Round, offset_of
from wattlaw.running.training.environment import HOST
from wattlaw.store.record import ClockReport
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.identity import run_id

DELAY = st.integers(0, 10**10)
NOW_NS = 1_800_000_000 * 10**9


@given(
    ahead_ns=st.integers(-(10**13), 10**13),
    delays=st.lists(st.tuples(DELAY, DELAY, DELAY), min_size=1, max_size=ROUNDS),
)
def test_an_offset_is_off_by_half_the_quickest_round_trip_at_most(ahead_ns, delays):
    """Each round takes some time to the reference, some there, and some back."""
    rounds, now_ns = [], NOW_NS
    for there, within, back in delays:
        told = now_ns + there + within // 2
        end_ns = now_ns + there + within + back
        rounds.append(Round(now_ns + ahead_ns, told, end_ns + ahead_ns))
        now_ns = end_ns
    offset_s, uncertainty_s = offset_of(rounds)
    assert abs(offset_s - ahead_ns / 1e9) <= uncertainty_s + 1e-9
    assert uncertainty_s == pytest.approx(min(sum(one) for one in delays) / 2e9)


def test_an_offset_by_hand():
    """5 s ahead; 10 ms there and 30 ms back: half way it seems 5.01 s, and is so within 20 ms."""
    rounds = [Round(5_000_000_000, 10_000_000, 5_040_000_000), Round(0, 0, 10**9)]
    assert offset_of(rounds) == pytest.approx((5.01, 0.02))


def test_rounds_in_which_a_clock_was_set_back_are_ignored():
    good, bad = Round(100, 60, 120), Round(100, 60, 90)
    assert offset_of([bad, good]) == offset_of([good])
    with pytest.raises(ValueError, match="no request was answered"):
        offset_of([bad])


NODE = """
import sys
from pathlib import Path
from wattlaw.running.training import clocks
if len(sys.argv) > 5:
    clocks.TIMEOUT_S["begin"] = clocks.TIMEOUT_S["end"] = float(sys.argv[5])
ahead_ns = int(sys.argv[4])
import time
real = time.time_ns
clocks.time = type("Ahead", (), {**vars(time), "time_ns": staticmethod(lambda: real() + ahead_ns)})
endpoint = clocks.Endpoint("127.0.0.1", int(sys.argv[2]), int(sys.argv[1]), int(sys.argv[3]))
compared = clocks.Clocks(endpoint, Path.cwd())
compared.compare("begin")
compared.compare("end")
"""


def node(
    folder: Path, number: int, port: int, nodes: int, *, ahead_s: float = 0.0, patience: str = ""
) -> "subprocess.Popen[str]":
    ahead_ns = str(round(ahead_s * 1e9))
    line = [sys.executable, "-c", NODE, str(number), str(port), str(nodes), ahead_ns]
    line += [patience] if patience else []
    return subprocess.Popen(
        line, env=environment(**{HOST: f"n{number}"}), cwd=folder, stderr=subprocess.PIPE, text=True
    )


def reports(folder: Path, number: int) -> list[ClockReport]:
    text = (folder / f"clocks.n{number}.json").read_text()
    return [ClockReport.model_validate(one) for one in json.loads(text)]


def _knock(port: int) -> None:
    """Connect as a program that looks for open ports, before the nodes do."""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 1) as known,
        ):
            known.sendall(b"GET / HTTP/1.0")
            return
        time.sleep(0.001)


def test_each_node_finds_how_far_its_clock_is_from_the_first_ones(tmp_path: Path):
    ahead_s = {0: 100.0, 1: 107.0, 2: 99.5}
    port = free_port()
    stranger = threading.Thread(target=_knock, args=(port,), daemon=True)
    stranger.start()
    nodes = [node(tmp_path, n, port, 3, ahead_s=ahead_s[n]) for n in ahead_s]
    said = [one.communicate(timeout=60)[1] for one in nodes]
    assert [one.returncode for one in nodes] == [0, 0, 0], said
    assert reports(tmp_path, 0) == []
    for number in (1, 2):
        begin, end = reports(tmp_path, number)
        assert (begin.at, end.at) == ("begin", "end")
        for one in (begin, end):
            assert (one.host, one.reference) == (f"n{number}", "n0")
            assert abs(one.offset_s - (ahead_s[number] - 100)) <= one.uncertainty_s
            assert 0 < one.uncertainty_s < 0.1


@pytest.mark.parametrize("there", [0, 1])
def test_a_missing_node_does_not_block_the_others(there: int, tmp_path: Path):
    begun_s = time.monotonic()
    alone = node(tmp_path, there, free_port(), 2, patience="1")
    _, said = alone.communicate(timeout=60)
    assert alone.returncode == 0
    assert "clocks were not compared at the begin" in said
    assert reports(tmp_path, there) == []
    assert time.monotonic() - begun_s < 40


def test_a_single_node_has_nothing_to_compare(tmp_path: Path):
    for endpoint in (None, Endpoint("127.0.0.1", 1, 0, 1)):
        Clocks(endpoint, tmp_path).compare("begin")
    assert list(tmp_path.iterdir()) == []


def test_two_agents_train_one_run_and_record_each_host(tmp_path: Path):
    """On one machine, each with a name of its own, meeting over the loopback device."""
    spec = spec_of("digits-cnn", {"width": 8}, gpus=2, global_batch=256, epochs=2)
    spec = spec.model_copy(update={"nodes": 2})
    folder = RunFolder(tmp_path / run_id(spec))
    agents = [
        agent(folder, 1, 1, options, **{HOST: f"n{n}"}) for n, options in enumerate(several(2))
    ]
    try:
        time.sleep(1)
        record = record_of(spec, folder, 1)  # as a slow file system shows it
        assert [one.wait(100) for one in agents] == [0, 0], folder.log_path.read_text()
    finally:
        for one in agents:
            one.kill()
            one.wait()
    names = {path.name for path in folder.live(1).iterdir()}
    for kind in ("facts", "clocks", "ended"):
        assert {f"{kind}.n0.json", f"{kind}.n1.json"} <= names
    done = finish(record, folder)
    assert done.status == "done", done.reason
    assert done.facts.hosts == ("n0", "n1")
    assert {report.host for report in done.samplers} == {"n0", "n1"}
    assert [(one.host, one.reference, one.at) for one in done.clocks] == [
        ("n1", "n0", "begin"),
        ("n1", "n0", "end"),
    ]
    for one in done.clocks:  # it is the same clock
        assert abs(one.offset_s) <= one.uncertainty_s
