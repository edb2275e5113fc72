"""The web server: routes, server-sent events, and the socket that it listens on."""

import asyncio
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattlaw.common.errors import NoSuchRun, NotAvailable, one_line
from wattlaw.common.formatting import replace_invisible
from wattlaw_dashboard.access import Guard, Tokens, private_folder
from wattlaw_dashboard.dashboard_overview import SHARE, Chosen
from wattlaw_dashboard.pages import PERIOD_S, PROBLEM, Pages, Parts, page, results_page

_ASSETS = {"app.css": "text/css", "app.js": "text/javascript", "report.css": "text/css"}
_MOST_CHANNELS = 256
#: After so quiet a time, a comment shows that the connection is alive.
_ALIVE_S = 10.0
#: Connections without a request that are open at once, those that the kernel holds until they are
#: accepted, and the longest time that a request may take to arrive.
MOST_SILENT, BACKLOG, _REQUEST_S = 128, 64, 10.0
#: Longest path of a Unix socket (unix(7)), with its final zero.
_MAX_SOCKET_PATH = 107


@dataclass
class Channel:
    """One page: its parts of HTML are computed once for all viewers, and sent if they change."""

    path: str
    compute: Callable[[], Parts]
    viewers: int = 0
    _parts: Parts = field(default_factory=dict)
    _due_s: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def fresh(self) -> Parts:
        """Return the parts, computed anew if it is time; if that fails, the last and the reason."""
        async with self._lock:
            if time.monotonic() < self._due_s:
                return self._parts
            begin_s = time.process_time()
            try:
                self._parts = {**await asyncio.to_thread(self.compute), PROBLEM: ""}
            except Exception as error:  # the viewers see it, and the next period may succeed
                if isinstance(error, NoSuchRun) and not self._parts:
                    raise
                text = escape(replace_invisible(one_line(error)))
                self._parts = {**self._parts, PROBLEM: text}
            used_s = time.process_time() - begin_s
            self._due_s = time.monotonic() + max(PERIOD_S, used_s / SHARE)
            return self._parts

    async def events(self) -> AsyncIterator[str]:
        before: Parts = {}
        sent_s = time.monotonic()
        self.viewers += 1
        try:
            while True:
                now = await self.fresh()
                changed = {name: html for name, html in now.items() if before.get(name) != html}
                before = now
                if changed:
                    yield f"data: {json.dumps(changed)}\n\n"
                elif time.monotonic() - sent_s >= _ALIVE_S:
                    yield ": alive\n\n"
                else:
                    await asyncio.sleep(PERIOD_S)
                    continue
                sent_s = time.monotonic()
        finally:
            self.viewers -= 1


class Application:
    """The routes over the pages; each page with viewers has one channel."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._channels: dict[str, Channel] = {}

    def app(self, tokens: Tokens | None) -> Any:
        run = "/run/{store}/{run_id}"
        routes = [
            Route("/", self._page),
            Route(run, self._page),
            Route("/events", self._events),
            Route(f"/events{run}", self._events),
            Route("/results", self._results),
            Route("/static/{name}", self._asset),
        ]
        starlette = Starlette(routes=routes, exception_handlers={Exception: _failed})
        starlette.router.redirect_slashes = False
        return Guard(starlette, tokens)

    async def _page(self, request: Request) -> Response:
        channel, parts = await self._opened(request)
        run_id = request.path_params.get("run_id")
        title, nav = ("Overview", "overview") if run_id is None else (f"Run {run_id}", "run")
        text = page(title, f"/events{channel.path}", parts, nav)
        return HTMLResponse(text, 500 if parts[PROBLEM] else 200)

    async def _events(self, request: Request) -> Response:
        channel, _ = await self._opened(request)  # so that a page that does not exist is an answer
        if request.method == "HEAD":  # its answer has no end otherwise
            return Response(media_type="text/event-stream")
        return StreamingResponse(channel.events(), media_type="text/event-stream")

    async def _opened(self, request: Request) -> tuple[Channel, Parts]:
        """Return the channel of a page, which all its viewers share, and the parts of now."""
        chosen = Chosen.of(request.query_params.multi_items())
        path = f"?{chosen.query}" if chosen.query else ""
        compute = partial(self._pages.overview, chosen)
        if request.path_params:
            store, run_id = request.path_params["store"], request.path_params["run_id"]
            if not (store.isascii() and store.isdecimal() and len(store) < 5):
                raise HTTPException(404, "there is no such store")
            path = f"/run/{int(store)}/{run_id}"
            compute = partial(self._pages.run, int(store), run_id)
        channel = self._channels.get(path) or Channel(path, compute)
        try:
            parts = await channel.fresh()
        except NoSuchRun as error:
            raise HTTPException(404, str(error)) from None
        if len(self._channels) >= _MOST_CHANNELS:
            self._channels = {name: each for name, each in self._channels.items() if each.viewers}
        return self._channels.setdefault(path, channel), parts

    async def _results(self, _: Request) -> Response:
        report = self._pages.report()
        if report is None:
            return HTMLResponse(results_page("Reading the results ..."), headers={"refresh": "2"})
        return HTMLResponse(report)

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise HTTPException(404, "there is no such file")
        package = "wattlaw.report" if name == "report.css" else "wattlaw_dashboard"
        file = resources.files(package).joinpath("templates", name)
        text = await run_in_threadpool(file.read_text, "utf-8")
        return Response(text, media_type=_ASSETS[name])


async def _failed(_: Request, __: Exception) -> Response:
    return PlainTextResponse("this page cannot be computed; see the terminal of wattlaw\n", 500)


def listen_unix(folder: Path) -> tuple[socket.socket, Path]:
    """Return a listening socket in a private folder; ``NotAvailable`` if its path is too long."""
    path = private_folder(folder) / f"dashboard-{secrets.token_hex(4)}.sock"
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise NotAvailable(f"{path}: too long for a socket; set XDG_RUNTIME_DIR to a short folder")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o600)
    listening.listen(BACKLOG)
    return listening, path


def listen_tcp(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise NotAvailable(f"port {port}: {reason}; choose another one") from None


class _Protocol(H11Protocol):
    """One connection. A port is open to every user of the machine, so connections without a request
    are bounded; a request without the cookie is answered at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_S, self._close_if_silent)
        silent = [
            each for each in self.connections
            if isinstance(each, _Protocol) and each.cycle is None and each is not self
            and not each.transport.is_closing()
        ]  # fmt: skip
        if len(silent) >= MOST_SILENT:
            silent[0].transport.abort()

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()


def serve(pages: Pages, listening: socket.socket, tokens: Tokens | None) -> None:
    config = uvicorn.Config(
        Application(pages).app(tokens), http=_Protocol, ws="none", lifespan="off", access_log=False,
        log_level="critical", server_header=False, timeout_graceful_shutdown=1, proxy_headers=False,
        backlog=BACKLOG,
    )  # fmt: skip
    server = uvicorn.Server(config)
    # uvicorn sends itself the signal again when it has ended: the caller then removes its files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The first page is there when the browser is.
    Thread(target=pages.overview, daemon=True).start()
    with suppress(KeyboardInterrupt):
        asyncio.run(server.serve(sockets=[listening]))
