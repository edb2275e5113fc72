"""Who may read the pages, and what a browser may do with them.

A Unix socket is in a folder that only its user can enter. A TCP port of the loopback interface is
open to every user of the machine: it needs a token, which is valid once and is exchanged for a
cookie.
"""

import hmac
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattlaw.common.errors import NotPermitted
from wattlaw.common.files import read_text, write_text
from wattlaw.report.rendering import style_hash

COOKIE = "wattlaw"
#: Host names of the loopback interface: a page of another site cannot use them (DNS rebinding).
_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MAX_QUERY = 4096
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
#: The style of the report is in its page.
_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' '{style_hash()}'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"connection", b"close"),
)


class Tokens:
    """A token that is valid once, and the cookie for it. Nobody guesses their 256 bits."""

    def __init__(self, cookie: str) -> None:
        self.token: str | None = secrets.token_urlsafe(32)
        self._cookie = cookie

    def exchange(self, token: str) -> str | None:
        if self.token is not None and hmac.compare_digest(token.encode(), self.token.encode()):
            self.token = None
            return self._cookie
        return None

    def has_cookie(self, header: str) -> bool:
        pairs = (part.strip().partition("=") for part in header.split(";"))
        return any(
            name == COOKIE and hmac.compare_digest(value.encode(), self._cookie.encode())
            for name, _, value in pairs
        )


class Guard:
    """Answers GET requests to this machine by permitted users, and adds the security headers."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET is allowed\n", 405, {"allow": "GET, HEAD"})
        host = re.sub(r":\d+$", "", headers.get(b"host", ""))
        if host.lower() not in _HOSTS:
            return PlainTextResponse("unknown host; use localhost\n", 421)
        tokens = self._tokens
        if tokens is None or tokens.has_cookie(headers.get(b"cookie", "")):
            return None
        values = parse_qs(scope["query_string"].decode("latin-1")[:_MAX_QUERY]).get("token")
        if not values:
            return PlainTextResponse("a token is required; see the terminal of wattlaw\n", 403)
        cookie = tokens.exchange(values[0])
        if cookie is None:
            return PlainTextResponse("wrong or used token\n", 403)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict")
        return response


def kept_cookie(folder: Path) -> str:
    """Return the cookie of a private folder, so that browsers reconnect after a restart."""
    path = private_folder(folder) / "cookie"
    with suppress(FileNotFoundError, UnicodeDecodeError):
        cookie = read_text(path)
        if _COOKIE.fullmatch(cookie):  # an empty file would permit everybody
            return cookie
    cookie = secrets.token_urlsafe(32)
    write_text(path, cookie, durable=False, mode=0o600)
    return cookie


def private_folder(folder: Path) -> Path:
    allowed = "allowed: a folder of this user with mode 0700; set XDG_RUNTIME_DIR to such a folder"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NotPermitted(f"{folder}: cannot be created: {error.strerror}; {allowed}") from None
    state = folder.lstat()
    is_private = stat.S_ISDIR(state.st_mode) and not state.st_mode & 0o077
    if state.st_uid != os.getuid() or not is_private:
        raise NotPermitted(f"{folder}: not private; {allowed}")
    return folder
