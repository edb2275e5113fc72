"""The web server: routes, server-sent events, and the socket that it listens on."""

import asyncio
import os
import secrets
import signal
import socket
from contextlib import suppress
from functools import partial
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

from wattlaw.common.errors import NoSuchRun, NotAvailable
from wattlaw_dashboard.access import Guard, Tokens, private_folder
from wattlaw_dashboard.channels import PROBLEM, Channel, Parts
from wattlaw_dashboard.dashboard_overview import Chosen
from wattlaw_dashboard.pages import Pages, page, results_page

_ASSETS = {"app.css": "text/css", "app.js": "text/javascript", "report.css": "text/css"}
_MOST_CHANNELS = 256
#: Connections without a request that are open at once, those that the kernel holds until they are
#: accepted, and the longest time that a request may take to arrive.
MOST_SILENT, BACKLOG, _REQUEST_S = 128, 64, 10.0
#: Longest path of a Unix socket (unix(7)), with its final zero.
_MAX_SOCKET_PATH = 107


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
            viewed = {name: each for name, each in self._channels.items() if each.viewers}
            self._channels = viewed
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
    """One connection. A port is open to every user of the machine: their silent ones are bounded.

    A request without the cookie is answered, and its connection closed, at once.
    """

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
