"""The load of the live view: 50 viewers of a store whose study trains beside the server.

The server has one core and the training the other one. The training runs alone and beside the
server in turns; the ratio of their step times is the slow-down. Then a store of 100,000 runs is
opened.

With --paint it measures instead, in a headless browser, the time from the address to the frame that
has the runs of a store, beside that of an empty page.

Usage: python benchmarks/dashboard.py [--seconds 60] [--viewers 50] [--pairs 6] [--paint STORE]
"""

import argparse
import contextlib
import http.client
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import yaml
from playwright.sync_api import sync_playwright
from scipy import stats

from common import write_results
from large_store import make_folders
from wattlaw.store.store import Store

STUDY = {
    "name": "load",
    "workloads": [{"name": "digits-cnn"}],
    "sweeps": [{"gpus": [1], "local_batch": [64]}],
    "measure": {"evaluate": False, "assume_cpu_w": 15},
    "launch": {"kind": "local", "gpus_per_node": 1, "threads_per_worker": 1},
}
SERVER_CORE, TRAINING_CORE = 0, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--large", type=Path, help="a store of run folders, instead of making one")
    parser.add_argument("--paint", type=Path, metavar="STORE", help="measure the first paint only")
    arguments = parser.parse_args()
    if arguments.paint:
        painted = _first_paint(arguments.paint) | {"load_average": os.getloadavg()}
        write_results("dashboard-paint", f"cpu{os.cpu_count()}", painted)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone, beside, shares, events = [], [], [], []
        for pair in range(arguments.pairs):
            seconds = arguments.seconds
            alone.append(_step_s(folder / f"alone{pair}", seconds))
            store = folder / f"beside{pair}"
            store.mkdir()
            (store / "runs").mkdir()
            with _server(store) as (process, url), _viewers(url, arguments.viewers) as counts:
                before, begin_s = _cpu_s(process), time.monotonic()
                beside.append(_step_s(store, seconds))
                shares.append((_cpu_s(process) - before) / (time.monotonic() - begin_s))
                events.append(sum(counts) / len(counts))
        opened = _open_large(arguments.large, folder / "large")
    ratios = np.log(np.array(beside) / np.array(alone))
    error = ratios.std(ddof=1) / np.sqrt(len(ratios)) if len(ratios) > 1 else np.nan
    error *= stats.t.ppf(0.975, max(1, len(ratios) - 1))  # a 95 % interval
    write_results(
        "dashboard", f"cpu{os.cpu_count()}",
        {
            "viewers": arguments.viewers, "seconds": arguments.seconds, "pairs": arguments.pairs,
            "share_of_the_server_core": shares, "events_of_a_viewer": events,
            "step_alone_s": alone, "step_beside_s": beside,
            "slow_down": float(np.expm1(ratios.mean())),
            "slow_down_interval": [float(np.expm1(ratios.mean() + sign * error))
                                   for sign in (-1, 1)],
            "large_store": opened, "load_average": os.getloadavg(),
        },
    )  # fmt: skip


def _pinned(core: int) -> list[str]:
    return [shutil.which("taskset") or "taskset", "-c", str(core)]


def _step_s(store: Path, seconds: float) -> float:
    """Train for some seconds on one core; return the mean step time."""
    study = store.parent / f"{store.name}.yaml"
    study.write_text(yaml.safe_dump(STUDY | {"measure": STUDY["measure"] | {"seconds": seconds}}))
    line = [sys.executable, "-m", "wattlaw", "run", str(study), "--store", str(store)]
    subprocess.run([*_pinned(TRAINING_CORE), *line], check=True, stdout=subprocess.DEVNULL)
    windows = Store(store).pandas("epochs")
    windows = windows[~windows["warmup"].astype(bool)]
    return float(windows["duration_s"].sum() / windows["steps"].sum())


@contextlib.contextmanager
def _server(store: Path) -> Iterator[tuple[psutil.Process, str]]:
    line = [*_pinned(SERVER_CORE), sys.executable, "-m", "wattlaw", "dashboard"]
    process = subprocess.Popen([*line, str(store), "--tcp", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield psutil.Process(process.pid), found[0]
    finally:
        process.terminate()
        process.wait()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def _viewers(url: str, count: int) -> Iterator[list[int]]:
    """Read events in threads; yield how many each has had."""
    host, port, path = _parts(url)
    connection = http.client.HTTPConnection(host, port)
    connection.request("GET", path)
    cookie = str(connection.getresponse().getheader("set-cookie")).split(";")[0]
    counts, lines = [0] * count, [_stream(host, port, cookie) for _ in range(count)]

    def read(index: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := lines[index].recv(1 << 16):
                counts[index] += data.count(b"data: ")

    threads = [threading.Thread(target=read, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        for thread in threads:
            thread.join()


def _parts(url: str) -> tuple[str, int, str]:
    found = re.match(r"http://([^:]+):(\d+)(\S*)", url)
    assert found is not None
    return found[1], int(found[2]), found[3]


def _stream(host: str, port: int, cookie: str) -> socket.socket:
    line = socket.create_connection((host, port))
    line.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
    return line


def _open_large(existing: Path | None, folder: Path) -> dict[str, float]:
    """Open a store of 100,000 runs twice; return the seconds until the first page."""
    store = existing or folder
    if existing is None:
        make_folders(store, 100_000)
    seconds = {}
    for name in ("first", "again"):
        with _server(store) as (_, url):
            host, port, path = _parts(url)
            connection = http.client.HTTPConnection(host, port)
            connection.request("GET", path)
            cookie = str(connection.getresponse().getheader("set-cookie")).split(";")[0]
            begin_s = time.monotonic()
            connection = http.client.HTTPConnection(host, port, timeout=600)
            connection.request("GET", "/", headers={"Cookie": cookie})
            connection.getresponse().read()
            seconds[f"{name}_s"] = time.monotonic() - begin_s
    return seconds


#: In a page: a promise of the milliseconds from the address to the frame after that with a run.
_PAINTED = """window.painted = new Promise((done) => {
  const look = () => requestAnimationFrame(document.querySelector("#part-runs td")
    ? () => done(performance.now()) : look);
  look();
})"""
_EMPTY = "data:text/html,<!DOCTYPE html><div id=part-runs><table><tr><td>run</table></div>"


def _first_paint(store: Path, times: int = 15) -> dict[str, float]:
    """Open a store at once after the server's start, and then in turns with an empty page."""
    with _server(store) as (_, url), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        view = browser.new_page(viewport={"width": 1300, "height": 900})
        view.add_init_script(_PAINTED)

        def painted_s(address: str) -> float:
            view.goto(address, wait_until="commit")
            return float(view.evaluate("window.painted")) / 1000

        first_s, overview = painted_s(url), view.url
        both = [(painted_s(overview), painted_s(_EMPTY)) for _ in range(times)]
    runs_s, empty_s = map(statistics.median, zip(*both, strict=True))
    return {
        "first_s": first_s, "runs_s": runs_s, "slowest_s": max(both)[0], "empty_s": empty_s,
        "ratio": statistics.median(runs / empty for runs, empty in both),
    }  # fmt: skip


if __name__ == "__main__":
    main()
