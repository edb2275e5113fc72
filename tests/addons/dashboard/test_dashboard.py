"""The live view: pages in a real browser, who may read them, and hostile content."""

import contextlib
import http.client
import itertools
import os
import random
import re
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, expect, sync_playwright

from conftest import python, started, wait_for
from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.common.errors import NotPermitted
from wattlaw.store.store import Store
from wattlaw_dashboard.access import kept_cookie, private_folder
from wattlaw_dashboard.dashboard_command import _private_folder
from wattlaw_dashboard.server import BACKLOG, MOST_SILENT

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


@pytest.fixture(scope="module")
def browser():
    if not Path(CHROMIUM).exists():
        pytest.skip("Debian's chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def view(browser):
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


class Site(NamedTuple):
    url: str
    cookie: str

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname, parts.port

    def get(self, path: str, method: str = "GET") -> http.client.HTTPResponse:
        return get(self.url, path, method, cookie=self.cookie)

    def let_in(self, context: BrowserContext) -> str:
        """Give the cookie to a browser, and return the address of the overview."""
        name, value = self.cookie.split("=", 1)
        root = f"http://{urlsplit(self.url).netloc}/"
        context.add_cookies([{"name": name, "value": value, "url": root}])
        return root


def get(url: str, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def cookie(url: str) -> str:
    answer = get(url, "/" + url.split("/", 3)[3])
    assert answer.status == 303
    return answer.getheader("set-cookie").split(";")[0]


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\x1b[31m\u202e"


def made_store(path: Path) -> Path:
    rows, windows = [run_row("failed00", status="failed", reason=HOSTILE)], []
    for index, gpus in enumerate((1, 2, 4)):
        run_id = f"done000{index}"
        rows.append(run_row(run_id, gpus=gpus, local_batch=64 // gpus))
        windows += [window_row(run_id, epoch, duration_s=8 / gpus) for epoch in range(2)]
    store = write_store(path, *frames(rows, windows), samples=50)
    log = (HOSTILE * 10 + "\n") * 3 + "x" * 1_000_000
    store.folder("failed00").log_path.write_text(f"{log}\n{HOSTILE}\n")
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Serve a store whose texts are hostile, for the tests that change nothing."""
    with served(made_store(tmp_path_factory.mktemp("site") / "store")) as url:
        yield Site(url, cookie(url))


def test_a_running_study_is_shown_and_its_charts_move(view, write_study, tmp_path):
    store, file = tmp_path / "store", tmp_path / "study.yaml"
    write_study(**study(tmp_path))
    with started("run", file, "--store", store), contextlib.ExitStack() as end:
        wait_for(lambda: [*store.glob("runs/*")], "runs")
        view.goto(end.enter_context(served(store)))
        expect(view.locator("#part-runs")).to_contain_text("waits", timeout=SLOW_MS)
        chart = view.locator("#part-live svg.timeline path.line").first
        expect(chart).to_be_attached(timeout=SLOW_MS)
        before = chart.get_attribute("d")
        view.wait_for_function(
            "old => document.querySelector('#part-live path.line').getAttribute('d') !== old",
            arg=before,
            timeout=SLOW_MS,
        )
        assert "fails" not in view.inner_text("#part-failed")
        (tmp_path / "go").touch()
        failed = view.locator("#part-failed article")
        expect(failed).to_contain_text("ended with exit code 3", timeout=SLOW_MS)
        failed.locator("summary").click()
        expect(failed.locator("pre")).to_contain_text("<b>reason</b>\\x1b[31m of the failure")
        done = view.locator("#part-runs tbody tr", has_text="waits").filter(has_text="done")
        expect(done).to_be_attached(timeout=SLOW_MS)
        done.locator("a").click()
        expect(view.locator("#part-facts")).to_contain_text("done")
        expect(view.locator("#part-log")).to_contain_text("waiting for the file")
        expect(view.locator("#part-windows tbody tr").first).to_be_attached()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_pages_are_accessible_and_fit_into_a_phone(browser, site, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, root = context.new_page(), site.let_in(context)
    page.set_default_timeout(SLOW_MS)
    for path in ("", "run/0/done0001", "results"):
        page.goto(root + path)
        if path == "results":
            page.wait_for_selector("#figure-pareto", timeout=SLOW_MS * 3)
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
        assert [item["id"] for item in found.response["violations"]] == [], path
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), path
    # The policy permits the report's own style.
    assert page.evaluate("getComputedStyle(document.querySelector('.answer')).padding") != "0px"
    context.close()


def test_hostile_names_and_logs_are_text(view, site):
    view.goto(site.let_in(view.context))
    failed = view.locator("#part-failed article")
    expect(failed).to_contain_text("<img src=x onerror=alert(1)>")
    assert view.locator("main img, main script, article b script").count() == 0
    failed.locator("summary").click()
    text = failed.locator("pre").inner_text()
    assert "\x1b" not in text
    assert "<script>alert(2)</script>" in text
    assert len(text) < 50_000


def test_runs_are_filtered_and_grouped_by_keyboard_and_the_focus_stays(view, site):
    root = site.let_in(view.context)
    view.goto(root + "?workload=%3Cscript%3Ealert(3)%3C/script%3E")
    expect(view.locator("#part-runs")).to_contain_text("None.")
    view.goto(root)
    row = view.locator("#part-runs tbody tr")
    expect(row).to_have_count(4)
    gpus = view.get_by_label("GPUs").first
    gpus.focus()
    view.keyboard.press("ArrowDown")
    view.keyboard.press("ArrowDown")
    expect(row).to_have_count(1, timeout=SLOW_MS)
    assert row.locator("td").all_inner_texts()[:3] == ["done", "2", "64"]
    assert view.url == root + "?gpus=2"
    assert gpus.evaluate("item => item === document.activeElement")
    view.get_by_role("checkbox", name="status").check()
    group = view.locator("#part-groups tbody tr")
    cells = group.locator("th, td")
    expect(cells.first).to_have_text("done", timeout=SLOW_MS)
    assert cells.all_inner_texts()[:3] == ["done", "measured", "1"]
    group.get_by_role("link").focus()
    view.keyboard.press("Enter")
    view.wait_for_url(re.compile("source=measured"))
    expect(row).to_have_count(1)
    view.get_by_role("link", name="Show all runs").click()
    expect(row).to_have_count(4)


def test_a_page_reconnects_after_the_server_was_restarted(view, tmp_path, monkeypatch):
    store = made_store(tmp_path / "store")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_folder(tmp_path / "runtime")))
    with served(store) as url:
        view.goto(url)
        expect(view.locator("#part-summary")).to_contain_text("4 of 4 measured runs")
    expect(view.locator("#connection")).to_contain_text("Not connected", timeout=SLOW_MS)
    folder = Store(store).folder("done0000")
    folder.write(folder.read().model_copy(update={"status": "failed", "reason": "changed"}))
    with started("dashboard", store, "--tcp", urlsplit(url).port) as process:
        process.stdout.readline()
        expect(view.locator("#part-failed")).to_contain_text("changed", timeout=SLOW_MS)
        expect(view.locator("#connection")).to_contain_text("Updates by itself")


def test_the_socket_is_private(tmp_path, monkeypatch):  # its path has at most 107 bytes
    store = made_store(tmp_path / "store")
    for path in (tmp_path, *tmp_path.parents[:2]):  # these must not be why it is refused
        path.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with started("dashboard", store) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        place = Path(re.search(r"-L 8765:(\S+) ", lines[1])[1])
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(place))
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost:8765\r\n\r\n")
            assert b"4 of 4 measured runs" in line.makefile("rb").read()
        if os.geteuid() == 0:
            code = f"import os, socket; os.setgid({NOBODY}); os.setuid({NOBODY}); " \
                   f"socket.socket(socket.AF_UNIX).connect({str(place)!r})"  # fmt: skip
            assert "PermissionError" in python("-c", code).stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not place.exists()


def test_the_port_needs_the_token_once_and_then_the_cookie(tmp_path):
    with served(write_store(tmp_path / "store", *frames([run_row("a")], [])).path) as url:
        token = re.search(r"token=(\S+)", url)[1]
        assert get(url, "/").status == 403
        assert get(url, "/?token=wrong").status == 403
        answer = get(url, f"/?token={token}")
        assert (answer.status, answer.getheader("location")) == (303, "/")
        pair, *flags = answer.getheader("set-cookie").split("; ")
        assert {"HttpOnly", "SameSite=strict"} <= {*flags}
        assert get(url, f"/?token={token}").status == 403
        page = get(url, "/", cookie=pair)
        assert page.status == 200
        assert "script-src 'self'" in page.getheader("content-security-policy")
        assert get(url, "/", cookie=pair, host="evil.example").status == 421
        assert get(url, "/", cookie=pair, host="localhost.evil.example:80").status == 421
        assert get(url, "/events", "HEAD", cookie=pair).read() == b""
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert get(url, "/", method, cookie=pair).status == 405
        addresses = [item.address for items in psutil.net_if_addrs().values() for item in items
                     if item.family == socket.AF_INET and item.address != "127.0.0.1"]  # fmt: skip
        for address in addresses:
            with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
                socket.create_connection((address, urlsplit(url).port), 2)


PATHS = (
    "/../../etc/passwd", "/static/../../../etc/passwd", "/static/%2e%2e/server.py", "/static/x",
    "/run/0/..", "/run/0/../../../etc/passwd", "/run/0/%2e%2e%2f%2e%2e", "/run/9/done0001",
    "/run/99999999999999999999/x", "/run/" + "9" * 5000 + "/x", "/run/0/done0001/",
    "/run/-1/done0001", "/run/0/done0001%00", "/run/0/" + "a" * 5000,
    "/events/../../etc/passwd", "/events/run/0/..", "/events/%00", "//", "/\\..",
)  # fmt: skip


def test_nothing_outside_the_pages_is_served(site):
    for path in PATHS:
        answer = site.get(path)
        text = answer.read().decode("utf-8", "replace")
        assert answer.status in (400, 404), path
        assert "root:" not in text
        assert "import" not in text
    dice = random.Random(0)
    words = b"GET ", b"/", b"HTTP/1.1", b"\r\n", b"Host: localhost", b"..", b"\0", b"a" * 9000
    for _ in range(100):
        raw = b"".join(dice.choice([*words, dice.randbytes(8)]) for _ in range(12))
        with contextlib.suppress(OSError), socket.create_connection(site.address, 5) as line:
            line.settimeout(0.05)
            line.sendall(raw + b"\r\n\r\n")
            assert b"root:" not in line.recv(65536)
    assert site.get("/").status == 200


def test_silent_connections_are_bounded_and_closed_and_those_of_the_owner_stay(site):
    def connections() -> int:
        return sum(
            line.status == psutil.CONN_ESTABLISHED
            and line.laddr.port == site.address[1]
            and line.pid not in (None, os.getpid())
            for line in psutil.net_connections("tcp4")
        )

    sent = itertools.cycle([b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
    with contextlib.ExitStack() as stack:
        events = site.get("/events")
        assert events.readline().startswith(b"data:")
        for _ in range(500):
            line = stack.enter_context(socket.create_connection(site.address, 30))
            with contextlib.suppress(OSError):
                line.sendall(next(sent))
        assert site.get("/").status == 200
        assert connections() <= MOST_SILENT + BACKLOG + 2
        assert events.fp is not None
        events.fp.raw._sock.settimeout(30)
        assert events.readline() in (b"\n", b": alive\n")
        assert events.readline() != b""
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(100) == b""  # after the time in which a request must arrive


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
    summary = view.locator("#part-summary")
    with served(store) as url:
        view.goto(url)
        expect(summary).to_contain_text("4 of 4 measured runs")
        store.rename(tmp_path / "moved")
        expect(view.locator("main")).to_contain_text("not a store", timeout=SLOW_MS)
        (tmp_path / "moved").rename(store)
        expect(summary).to_contain_text("4 of 4 measured runs", timeout=SLOW_MS)
        record = store / "runs" / "done0001" / "run.json"
        content = record.read_text()
        record.write_text("{")
        view.goto(f"{view.url}run/0/done0001")
        expect(view.locator("#part-problem")).to_contain_text("run.json", timeout=SLOW_MS)
        record.write_text(content)
        expect(view.locator("#part-facts")).to_contain_text("done", timeout=SLOW_MS)
        expect(view.locator("#part-problem")).to_be_empty()
