"""What the live view and ``top`` read of stores: samples, logs, the queue of a scheduler."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime, timedelta

import pytest
from test_dashboard import made_store

from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.cli.main import main
from wattlaw.running import run_status
from wattlaw.store.live import LiveWriter
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.store.streams import Sample
from wattlaw_dashboard.dashboard_overview import log_tail
from wattlaw_dashboard.pages import Pages, read_results
from wattlaw_dashboard.server import Channel
from wattlaw_dashboard.tails import Device, RunTail
from wattlaw_dashboard.timeline import timelines


def polled(path, devices, seconds):
    """Return the tail of a run that was read after each second of samples."""
    folder = RunFolder(path)
    folder.live(1).mkdir(parents=True)
    tail = RunTail(folder, 1)
    with LiveWriter(folder.live(1) / "telemetry.a.csv", Sample._fields) as stream:
        for second in range(seconds):
            stream.append(
                Sample(f"GPU-{number}", "gpu", second * 10**9, power_w=100.0 + number)
                for number in range(devices)
            )
            tail.poll()
    return tail


def test_many_devices_are_one_chart_of_their_mean_and_extremes(tmp_path):
    tail = polled(tmp_path, 200, 20)
    before = deepcopy(tail.devices)
    tail.poll()
    assert tail.devices == before
    (power,) = timelines(list(tail.devices.values()), tail.marks)
    names = ["mean of 200 devices", "least of devices", "greatest of devices"]
    assert [line["name"] for line in power.lines] == names
    assert re.findall(r"(?<!the )last ([\d.]+)", power.text) == ["200", "100", "299"]


def test_of_many_devices_fewer_steps_are_kept(tmp_path):
    tail = polled(tmp_path, 700, 100)
    assert {len(each.series("power_w")) for each in tail.devices.values()} == {61}


def test_a_pipe_or_a_link_in_a_run_is_not_read(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.live(1).mkdir(parents=True)
    os.mkfifo(folder.live(1) / "telemetry.a.csv")
    (tmp_path / "secret").write_text("secret")
    folder.log_path.symlink_to(tmp_path / "secret")
    tail = RunTail(folder, 1)
    tail.poll()
    assert (tail.devices, tail.marks) == ({}, [])
    assert log_tail(folder) == ""


def test_a_queue_is_not_queried_for_each_state(tmp_path, monkeypatch):
    store, queries = Store(made_store(tmp_path / "store")), []

    class Counting:
        def jobs(self, store):
            queries.append(store)
            return {}

    monkeypatch.setattr(run_status, "load_queues", lambda: ([Counting()], []))
    poller = run_status.StatusPoller()
    assert [len(poller.status(store).states) for _ in range(3)] == [4, 4, 4]
    assert len(queries) == 1
    monkeypatch.setattr(run_status, "_QUEUE_S", 0.0)
    poller.status(store)
    assert len(queries) == 2


def test_values_that_are_no_samples_are_left_out():
    device = Device("host", "GPU-0", "gpu")
    for power in ("1e308", "1e308", "-1e308", "nan", "inf", "", "x", "250"):
        device.add({"t_ns": "10000000000", "power_w": power})
    device.add({"t_ns": "1e300", "power_w": "100"})
    assert device.series("power_w") == {10: 250.0}


def test_top_prints_the_state_of_stores(tmp_path, capsys):
    store = made_store(tmp_path / "store")
    assert main(["top", str(store), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "4 of 4 measured runs" in shown
    assert "\x1b[31m" not in shown
    (store / "runs" / "done0000" / "run.json").write_text("{")
    assert main(["top", str(store), str(store), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "failures (1 measured, 1 unknown)" in shown
    assert "not a run record" in " ".join(shown.split())
    assert main(["top", str(tmp_path / "nothing"), "--once"]) == 2


@pytest.mark.parametrize(
    ("hardware", "memory_bytes", "expected"),
    [
        ("AMD EPYC, 2 cores", None, "2 worker-minutes"),
        ("NVIDIA H100 PCIe", None, "2 GPU-minutes"),
        ("new board", 10**10, "2 GPU-minutes"),
    ],
)
def test_the_time_of_workers_without_gpus_is_no_gpu_time(
    tmp_path, capsys, hardware, memory_bytes, expected
):  # fmt: skip
    row = run_row("a", gpus=2, local_batch=32, hardware=hardware)
    store = write_store(tmp_path / "store", *frames([row], [window_row("a", 0)]), samples=2)
    folder, begin = store.folder("a"), datetime(2026, 1, 1, tzinfo=UTC)
    record = folder.read()
    facts = record.facts.model_copy(update={"gpu_memory_bytes": memory_bytes})
    times = {"started_at": begin, "finished_at": begin + timedelta(minutes=1)}
    folder.write(record.model_copy(update={"facts": facts, **times}))
    assert main(["top", str(store.path), "--once"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())
    assert expected in Pages((store.path,)).overview()["summary"]


@pytest.mark.parametrize("line", [("report", "-o", os.devnull), ("dashboard",)])
def test_runs_that_cannot_be_read_are_no_empty_store(tmp_path, line):
    """Permissions do not bind root, so root gives up what makes it so."""
    folder = made_store(tmp_path / "store") / "runs"
    command, *options = line
    words = [sys.executable, "-m", "wattlaw", command, str(folder.parent), *options]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv (util-linux) is not installed")
        words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--", *words]
    folder.chmod(0)
    refused = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    folder.chmod(0o700)
    assert (refused.returncode, refused.stdout) == (3, "")
    (error,) = refused.stderr.splitlines()
    assert f"{folder}: no permission" in error
    assert f"chmod -R +rX {folder}" in error


def test_results_that_cannot_be_read_say_why(tmp_path):
    measured = {"gpu_energy_j": 5.0, "energy_source": "counter", "energy_verdict": "ok"}
    windows = [window_row("a", epoch, **measured) for epoch in range(2)]
    store = write_store(tmp_path / "store", *frames([run_row("a")], windows), samples=2).path
    assert read_results([store]).used == {"a": {"energy of GPUs": 10.0}}
    (store / "store.json").write_text("{")
    reading = read_results([store])
    assert "store.json: not a JSON file" in reading.problem
    pages = Pages((store,))
    pages._reading._value = reading
    assert "results cannot be read" in pages.overview()["answer"]


def test_viewers_share_one_computation_and_get_what_changes():
    states = iter([{"a": "1", "b": "1"}, {"a": "1", "b": "2"}, *[{"a": "1", "b": "2"}] * 99])
    calls = []

    def compute():
        calls.append(1)
        return next(states)

    async def watch(channel):
        events = channel.events()
        found = [json.loads((await anext(events)).removeprefix("data: ")) for _ in range(2)]
        await events.aclose()
        return found

    async def main():
        channel = Channel("", compute)
        return await asyncio.gather(*(watch(channel) for _ in range(20)))

    with ThreadPoolExecutor(1) as thread:  # Playwright has a loop in this one
        watched = thread.submit(lambda: asyncio.run(main())).result()
    for first, second in watched:
        assert (set(first), second) == ({"a", "b", "problem"}, {"b": "2"})
    assert len(calls) < 10
