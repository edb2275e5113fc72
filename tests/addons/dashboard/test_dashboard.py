"""The live view: pages in a real browser, who may read them, and hostile content."""

import asyncio
import contextlib
import http.client
import itertools
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from conftest import started, wait_for
from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.common.errors import NotPermitted
from wattlaw.store.store import Store
from wattlaw_dashboard.access import Tokens, kept_cookie, private_folder
from wattlaw_dashboard.connections import MOST_OTHERS
from wattlaw_dashboard.dashboard_command import _private_folder

NOBODY = 65534
CHROMIUM = "/usr/bin/chromium"
SLOW_MS = 30_000
#: Prints a line, and trains nothing until a file appears.
WAITS = """
import pathlib, sys, time
print("waiting for the file", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
FAILS = "import sys; print('<b>reason</b>\\x1b[31m of the failure'); sys.exit(3)"


def study(folder: Path) -> dict[str, object]:
    """Return a study whose first run waits for a file, and whose second one fails."""
    python = sys.executable
    return {
        "name": "live",
        "workloads": [
            {"name": "waits", "command": [python, "-c", WAITS, str(folder / "go")]},
            {"name": "fails", "command": [python, "-c", FAILS]},
        ],
        "sweeps": [{"gpus": [1], "local_batch": [1]}],
        "measure": {"epochs": 1, "warmup_epochs": 0, "sample_hz": 20, "assume_cpu_w": 15},
        "launch": {"kind": "local", "gpus_per_node": 1},
    }


@contextlib.contextmanager
def served(store: Path, *options: object) -> Iterator[str]:
    """Serve a store on a port, and yield the address with the token."""
    with started("dashboard", store, "--tcp", 0, *options) as process:
        line = process.stdout.readline()
        yield re.search(r"http://\S+", line)[0]


@contextlib.contextmanager
def forwarded(path: Path) -> Iterator[int]:
    """Forward a TCP port to a Unix socket, as ``ssh -L`` does, and yield the port."""

    async def pipe(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader, writer):
        try:
            there = await asyncio.open_unix_connection(str(path))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    loop = asyncio.new_event_loop()  # of a thread: Playwright has one in this thread
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(connect, "127.0.0.1", 0), loop)
    try:
        yield starting.result(20).sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip("Debian's chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def view(browser) -> Iterator[Page]:
    """Give a page that fails the test if it reports an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SLOW_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    page.on(
        "console", lambda item: errors.append(item.text) if "Content Security" in item.text else 0
    )
    yield page
    context.close()
    assert errors == []


def get(url: str, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    """Return the answer to one request."""
    host, port = re.match(r"http://([^:/]+):(\d+)", url).groups()
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def cookie(url: str) -> str:
    """Exchange the token of an address for the cookie."""
    answer = get(url, "/" + url.split("/", 3)[3])
    assert answer.status == 303
    return answer.getheader("set-cookie").split(";")[0]


def test_a_running_study_is_shown_and_its_charts_move(view, write_study, tmp_path):
    store, file = tmp_path / "store", tmp_path / "study.yaml"
    write_study(**study(tmp_path))
    with started("run", file, "--store", store), served_when_ready(store) as url:
        view.goto(url)
        expect(view.locator("#part-running")).to_contain_text("waits", timeout=SLOW_MS)
        chart = view.locator("#part-live svg.timeline path.line").first
        expect(chart).to_be_attached(timeout=SLOW_MS)
        before = chart.get_attribute("d")
        view.wait_for_function(
            "old => document.querySelector('#part-live path.line').getAttribute('d') !== old",
            arg=before, timeout=SLOW_MS,
        )  # fmt: skip
        assert "fails" not in view.inner_text("#part-failed")
        (tmp_path / "go").touch()
        failed = view.locator("#part-failed article")
        expect(failed).to_contain_text("ended with exit code 3", timeout=SLOW_MS)
        failed.locator("summary").click()
        expect(failed.locator("pre")).to_contain_text("<b>reason</b>\\x1b[31m of the failure")
        expect(view.locator("#part-ended")).to_contain_text("waits", timeout=SLOW_MS)
        view.locator("#part-ended th a").first.click()
        expect(view.locator("#part-facts")).to_contain_text("done")
        expect(view.locator("#part-log")).to_contain_text("waiting for the file")
        expect(view.locator("#part-windows tbody tr").first).to_be_attached()


@contextlib.contextmanager
def served_when_ready(store: Path) -> Iterator[str]:
    wait_for(lambda: (store / "runs").is_dir() and any((store / "runs").iterdir()), "runs")
    with served(store) as url:
        yield url


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\x1b[31m\u202e"


def made_store(path: Path) -> Path:
    """Write a store with three done runs and a failed one, whose texts are hostile."""
    rows: list[dict[str, object]] = [run_row("failed00", status="failed", reason=HOSTILE)]
    windows = []
    for index, gpus in enumerate((1, 2, 4)):
        run_id = f"done000{index}"
        rows.append(run_row(run_id, gpus=gpus, local_batch=64 // gpus))
        windows += [window_row(run_id, epoch, duration_s=8 / gpus) for epoch in range(2)]
    store = write_store(path, *frames(rows, windows), samples=50)
    log = (HOSTILE * 10 + "\n") * 3 + "x" * 10_000_000
    store.folder("failed00").log_path.write_text(f"{log}\n{HOSTILE}\n")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_pages_are_accessible_and_fit_into_a_phone(browser, tmp_path, width, scheme):
    store = made_store(tmp_path / "store")
    with served(store) as url:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(SLOW_MS)
        page.goto(url)
        root = page.url
        for path in ("", "results", "run/0/done0001", "compare?run=0/done0001&run=0/done0002"):
            page.goto(root + path)
            if path == "results":
                expect(page.locator("#part-results img").first).to_be_visible(timeout=SLOW_MS)
            found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
            assert [item["id"] for item in found.response["violations"]] == [], path
            assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), path
        assert page.inner_text("#part-comparison tbody").count("digits-cnn") == 2
        context.close()


def test_hostile_names_and_logs_are_text(view, tmp_path):
    with served(made_store(tmp_path / "store")) as url:
        view.goto(url)
        failed = view.locator("#part-failed article")
        expect(failed).to_contain_text("<img src=x onerror=alert(1)>")
        assert view.locator("main img, main script, article b script").count() == 0
        failed.locator("summary").click()
        text = failed.locator("pre").inner_text()
        assert "\x1b" not in text
        assert "<script>alert(2)</script>" in text
        assert len(text) < 50_000


def test_a_page_reconnects_after_the_server_was_restarted(view, tmp_path, monkeypatch):
    store = made_store(tmp_path / "store")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_folder(tmp_path / "runtime")))
    with served(store) as url:
        port = re.search(r":(\d+)/", url)[1]
        view.goto(url)
        expect(view.locator("#part-summary")).to_contain_text("4 of 4 runs")
    expect(view.locator("#connection")).to_contain_text("Not connected", timeout=SLOW_MS)
    folder = Store(store).folder("done0000")
    folder.write(folder.read().model_copy(update={"status": "failed", "reason": "changed"}))
    with started("dashboard", store, "--tcp", port) as process:
        process.stdout.readline()
        expect(view.locator("#part-failed")).to_contain_text("changed", timeout=SLOW_MS)
        expect(view.locator("#connection")).to_contain_text("Updates by itself")


def test_the_socket_is_private(view, tmp_path, monkeypatch):  # its path has at most 107 bytes
    store = made_store(tmp_path / "store")
    for path in (tmp_path, *tmp_path.parents[:2]):  # these must not be why it is refused
        path.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with started("dashboard", store) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        place = Path(re.search(r"-L 8765:(\S+) ", lines[1])[1])
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        with forwarded(place) as port:
            view.goto(f"http://localhost:{port}/")
            expect(view.locator("#part-summary")).to_contain_text("4 of 4 runs")
        if os.geteuid() == 0:
            code = f"import os, socket; os.setgid({NOBODY}); os.setuid({NOBODY}); " \
                   f"socket.socket(socket.AF_UNIX).connect({str(place)!r})"  # fmt: skip
            refused = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=False
            )
            assert "PermissionError" in refused.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not place.exists()


def test_the_port_needs_the_token_once_and_then_the_cookie(tmp_path):
    with served(made_store(tmp_path / "store")) as url:
        token = re.search(r"token=(\S+)", url)[1]
        assert get(url, "/").status == 403
        assert [get(url, "/?token=wrong").status for _ in range(12)] == [403] * 10 + [429] * 2
        answer = get(url, f"/?token={token}")
        assert (answer.status, answer.getheader("location")) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(answer.getheader("set-cookie").split("; "))
        pair = answer.getheader("set-cookie").split(";")[0]
        assert get(url, f"/?token={token}").status == 429
        page = get(url, "/", cookie=pair)
        assert page.status == 200
        assert "script-src 'self'" in page.getheader("content-security-policy")
        assert get(url, "/", cookie=pair, host="evil.example").status == 421
        assert get(url, "/", cookie=pair, host="localhost.evil.example:80").status == 421
        assert get(url, "/events?page=%2F", "HEAD", cookie=pair).read() == b""
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert get(url, "/", method, cookie=pair).status == 405
        port = re.search(r":(\d+)/", url)[1]
        others = [item for item in addresses() if item != "127.0.0.1"]
        for address in others:
            with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
                socket.create_connection((address, int(port)), 2)


def addresses() -> list[str]:
    """Return the IPv4 addresses of this machine."""
    every = (item for items in psutil.net_if_addrs().values() for item in items)
    return [item.address for item in every if item.family == socket.AF_INET]


PATHS = (
    "/../../etc/passwd", "/static/../../../etc/passwd", "/static/%2e%2e/server.py", "/static/x",
    "/run/0/..", "/run/0/../../../etc/passwd", "/run/0/%2e%2e%2f%2e%2e", "/run/9/done0001",
    "/run/99999999999999999999/x", "/run/" + "9" * 5000 + "/x",
    "/run/-1/done0001", "/run/0/done0001%00", "/run/0/" + "a" * 5000,
    "/compare", "/compare?run=0/done0001" + "&run=0/done0001" * 20, "/compare?run=../x/y",
    "/events?page=/../../etc/passwd", "/events?page=/run/0/..", "/events?page=%00", "//", "/\\..",
)  # fmt: skip


def test_nothing_outside_the_pages_is_served(tmp_path):
    store = made_store(tmp_path / "store")
    with served(store) as url:
        pair = cookie(url)
        for path in PATHS:
            answer = get(url, path, cookie=pair)
            text = answer.read().decode("utf-8", "replace")
            assert answer.status in (400, 404), path
            assert "root:" not in text
            assert "import" not in text
        host, port = re.match(r"http://([^:/]+):(\d+)", url).groups()
        dice = random.Random(0)
        words = b"GET ", b"/", b"HTTP/1.1", b"\r\n", b"Host: localhost", b"..", b"\0", b"a" * 9000
        for _ in range(300):
            raw = b"".join(dice.choice([*words, dice.randbytes(8)]) for _ in range(12))
            address = host, int(port)
            with contextlib.suppress(OSError), socket.create_connection(address, 5) as line:
                line.settimeout(0.05)
                line.sendall(raw + b"\r\n\r\n")
                assert b"root:" not in line.recv(65536)
        assert get(url, "/", cookie=pair).status == 200


def test_a_connection_that_sends_no_request_is_closed(tmp_path):
    with served(made_store(tmp_path / "store")) as url:
        host, port = re.match(r"http://([^:/]+):(\d+)", url).groups()
        with socket.create_connection((host, int(port)), 30) as line:
            line.sendall(b"GET / HT")
            assert line.recv(100) == b""


def open_sockets(url: str) -> tuple[tuple[str, int], Callable[[], int]]:
    """Return the address of a server, and a function that counts its connections."""
    host, port = re.match(r"http://([^:/]+):(\d+)", url).groups()

    def count() -> int:
        return sum(
            line.status == psutil.CONN_ESTABLISHED and line.laddr.port == int(port)
            and line.pid not in (None, os.getpid())
            for line in psutil.net_connections("tcp4")
        )  # fmt: skip

    return (host, int(port)), count


def test_strangers_connections_are_bounded_and_the_owner_stays(tmp_path):
    sent = itertools.cycle([b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
    with served(made_store(tmp_path / "store")) as url, contextlib.ExitStack() as stack:
        pair = cookie(url)
        address, count = open_sockets(url)
        events = get(url, "/events?page=/", cookie=pair)
        assert events.readline().startswith(b"data:")
        for _ in range(600):
            line = stack.enter_context(socket.create_connection(address, 30))
            with contextlib.suppress(OSError):
                line.sendall(next(sent))
        assert get(url, "/", cookie=pair).status == 200
        assert count() <= MOST_OTHERS + 2
        assert events.fp is not None
        events.fp.raw._sock.settimeout(30)
        assert events.readline() in (b"\n", b": alive\n")
        assert events.readline() != b""


def test_a_flood_of_connections_does_not_close_those_of_the_owner(tmp_path):
    with served(made_store(tmp_path / "store")) as url:
        address, count = open_sockets(url)
        stop, most = threading.Event(), [0]

        def flood() -> None:
            lines: list[socket.socket] = []
            while not stop.is_set() and most[0] < 5000:
                most[0] += 1
                with contextlib.suppress(OSError):
                    lines.append(socket.create_connection(address, 5))
                if len(lines) > 400:
                    lines.pop(0).close()
            for line in lines:
                line.close()

        threads = [threading.Thread(target=flood) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: most[0] > 300, "connections")
            pair = cookie(url)  # the token, while others flood
            for _ in range(5):
                assert get(url, "/", cookie=pair).status == 200
                assert count() <= MOST_OTHERS + 2
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
def test_a_runtime_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
    assert _private_folder(tmp_path) == tmp_path / "other" / "wattlaw"
    os.chown(tmp_path / "other", NOBODY, NOBODY)
    assert _private_folder(tmp_path) == tmp_path / ".dashboard-0"


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    assert stat.S_IMODE(private_folder(tmp_path / "own").stat().st_mode) == 0o700
    cookie = kept_cookie(tmp_path / "own")
    assert kept_cookie(tmp_path / "own") == cookie
    (tmp_path / "own" / "cookie").write_text("")
    assert len(kept_cookie(tmp_path / "own")) == len(cookie)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(NotPermitted, match="0700"):
        private_folder(tmp_path / "open")


def test_a_page_that_cannot_be_computed_says_why_and_goes_on(view, tmp_path):
    store = made_store(tmp_path / "store")
    with served(store) as url:
        view.goto(url)
        expect(view.locator("#part-summary")).to_contain_text("4 of 4 runs")
        store.rename(tmp_path / "moved")
        expect(view.locator("main")).to_contain_text("not a store", timeout=SLOW_MS)
        (tmp_path / "moved").rename(store)
        expect(view.locator("#part-summary")).to_contain_text("4 of 4 runs", timeout=SLOW_MS)
        record = store / "runs" / "done0001" / "run.json"
        content = record.read_text()
        record.write_text("{")
        view.goto(f"{view.url}run/0/done0001")
        expect(view.locator("#part-problem")).to_contain_text("run.json", timeout=SLOW_MS)
        record.write_text(content)
        expect(view.locator("#part-facts")).to_contain_text("done", timeout=SLOW_MS)
        expect(view.locator("#part-problem")).to_be_empty()


def test_wrong_tokens_are_limited_and_the_right_one_is_used_up():
    tokens = Tokens("cookie")
    right = tokens.token
    assert not any(tokens.exchange("wrong") for _ in range(9))
    assert not tokens.is_blocked()
    assert tokens.exchange(right) == "cookie"
    assert tokens.exchange(right) is None
    assert tokens.is_blocked()
