"""The web server: routes, server-sent events, and the socket that it listens on."""

import asyncio
import os
import secrets
import signal
import socket
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from wattlaw.common.errors import NoSuchRun, NotAvailable
from wattlaw_dashboard.access import Guard, Tokens, private_folder
from wattlaw_dashboard.channels import PROBLEM, Channel, Parts
from wattlaw_dashboard.connections import BACKLOG, Server
from wattlaw_dashboard.pages import MAX_ID, Pages, page

_ASSETS = {"app.css": "text/css", "app.js": "text/javascript", "report.css": "text/css"}
_MOST_CHANNELS, _MOST_COMPARED = 256, 8
#: Longest path of a Unix socket (unix(7)), with its final zero.
_MAX_SOCKET_PATH = 107


class Application:
    """The routes over the pages; each page with viewers has one channel."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._channels: dict[str, Channel] = {}

    def app(self, tokens: Tokens | None) -> Any:
        routes = [
            Route("/", self._page),
            Route("/results", self._page),
            Route("/run/{store}/{run_id}", self._page),
            Route("/compare", self._page),
            Route("/events", self._events),
            Route("/static/{name}", self._asset),
        ]
        starlette = Starlette(routes=routes, exception_handlers={Exception: _failed})
        return Guard(starlette, tokens)

    async def _page(self, request: Request) -> Response:
        key, channel, title, nav = self._channel(request)
        parts = await _parts(channel)
        text = page(title, f"/events?page={quote(key, safe='')}", parts, nav)
        return HTMLResponse(text, 500 if parts[PROBLEM] else 200)

    async def _events(self, request: Request) -> Response:
        key = request.query_params.get("page", "/")
        _, channel, _, _ = self._channel(Request({**request.scope, **_split(key)}))
        await _parts(channel)  # so that a page that does not exist is an answer
        if request.method == "HEAD":  # its answer has no end otherwise
            return Response(media_type="text/event-stream")
        return StreamingResponse(channel.events(), media_type="text/event-stream")

    def _channel(self, request: Request) -> tuple[str, Channel, str, str]:
        """Return the address of a page, its channel, its title, its place in the navigation.

        Parameters that the page does not have are no part of its address: all viewers share it.
        """
        key = path = request.url.path
        pages = self._pages
        words = path.strip("/").split("/")
        if path == "/":
            compute, title, nav = pages.overview, "Overview", "overview"
        elif path == "/results":
            compute, title, nav = pages.results, "Results", "results"
        elif len(words) == 3 and words[0] == "run":
            store, run_id = _chosen(f"{words[1]}/{words[2]}")
            compute, title, nav = (lambda: pages.run(store, run_id)), f"Run {run_id}", "run"
        elif path == "/compare":
            chosen = [_chosen(text) for text in request.query_params.getlist("run")]
            if not 1 <= len(chosen) <= _MOST_COMPARED:
                raise HTTPException(400, f"choose 1 to {_MOST_COMPARED} runs")
            compute, title, nav = (lambda: pages.comparison(chosen)), "Comparison", "compare"
            key = f"{path}?{urlencode([('run', f'{store}/{run_id}') for store, run_id in chosen])}"
        else:
            raise HTTPException(404, "there is no such page")
        if key not in self._channels:
            if len(self._channels) >= _MOST_CHANNELS:
                viewed = {name: each for name, each in self._channels.items() if each.has_viewers}
                self._channels = viewed
            self._channels[key] = Channel(compute)
        return key, self._channels[key], title, nav

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise HTTPException(404, "there is no such file")
        package = "wattlaw.report" if name == "report.css" else "wattlaw_dashboard"
        file = resources.files(package).joinpath("templates", name)
        text = await run_in_threadpool(file.read_text, "utf-8")
        return Response(text, media_type=_ASSETS[name])


async def _parts(channel: Channel) -> Parts:
    try:
        return await channel.fresh()
    except NoSuchRun as error:
        raise HTTPException(404, str(error)) from None


def _chosen(text: str) -> tuple[int, str]:
    store, _, run_id = text.partition("/")
    if not (store.isascii() and store.isdecimal() and len(store) < 5 and len(run_id) <= MAX_ID):
        raise HTTPException(400, "run: allowed: STORE NUMBER/RUN ID")
    return int(store), run_id


def _split(key: str) -> dict[str, Any]:
    path, _, query = key.partition("?")
    return {"path": path, "raw_path": path.encode(), "query_string": query.encode()}


async def _failed(_: Request, __: Exception) -> Response:
    return PlainTextResponse("this page cannot be computed; see the terminal of wattlaw\n", 500)


def listen_unix(folder: Path) -> tuple[socket.socket, Path]:
    """Return a listening socket in a private folder.

    Raises ``NotAvailable`` if the path is too long for a socket.
    """
    path = private_folder(folder) / f"dashboard-{secrets.token_hex(4)}.sock"
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise NotAvailable(f"{path}: too long for a socket; set XDG_RUNTIME_DIR to a short folder")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o600)
    listening.listen(BACKLOG)
    return listening, path


def listen_tcp(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1; 0 is any free port.

    Raises ``NotAvailable`` if the port is in use.
    """
    listening = socket.socket(socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise NotAvailable(f"port {port}: {error.strerror}; choose another one") from None
    listening.listen(BACKLOG)
    return listening


def serve(pages: Pages, listening: socket.socket, tokens: Tokens | None) -> None:
    config = uvicorn.Config(
        Application(pages).app(tokens), http="h11", ws="none", lifespan="off", access_log=False,
        log_level="critical", server_header=False, timeout_graceful_shutdown=1, proxy_headers=False,
    )  # fmt: skip
    server = Server(config, listening, tokens)
    # uvicorn sends itself the signal again when it has ended: the caller then removes its files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        asyncio.run(server.serve())
