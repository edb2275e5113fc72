"""The open connections: how many there may be, and which of them makes room for another one.

A port of the loopback interface is open to every user of the machine. A connection is the owner's
once it has sent the cookie. All others share few places. When these are taken, the oldest of them
is closed before the next one is accepted, but not before the owner had time to send a request.
"""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattlaw_dashboard.access import Tokens

#: Connections of the owner, and others, that are open at once.
MOST_OWNED, MOST_OTHERS = 256, 128
#: Connections that the kernel holds until they are accepted.
BACKLOG = 512
#: The time in which no connection is closed to make room for another one.
GRACE_S = 0.25
#: The longest time that a request may take to arrive.
REQUEST_S = 10.0


class Connections:
    """The connections of one server. Without tokens every request is the owner's."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens
        self._others: dict[_Protocol, float] = {}  # when they were accepted, oldest first
        self._owned: set[_Protocol] = set()

    def add(self, protocol: "_Protocol") -> None:
        self._others[protocol] = asyncio.get_running_loop().time()

    def remove(self, protocol: "_Protocol") -> None:
        self._others.pop(protocol, None)
        self._owned.discard(protocol)

    def request(self, protocol: "_Protocol", headers: dict[bytes, bytes]) -> None:
        """Assign a connection to the owner if its request has the cookie."""
        cookie = headers.get(b"cookie", b"").decode("latin-1")
        if protocol in self._others and (self._tokens is None or self._tokens.has_cookie(cookie)):
            del self._others[protocol]
            self._owned.add(protocol)
            if len(self._owned) > MOST_OWNED:
                protocol.drop()

    async def wait_for_place(self) -> None:
        """Wait until another connection may be accepted, and close the oldest if need be."""
        while len(self._others) >= MOST_OTHERS:
            protocol, since_s = next(iter(self._others.items()))
            age_s = asyncio.get_running_loop().time() - since_s
            if age_s >= GRACE_S:
                protocol.drop()
            else:
                await asyncio.sleep(GRACE_S - age_s)


class _Protocol(H11Protocol):
    """One connection, which has only one request; it is closed if that does not arrive in time."""

    def __init__(self, connections: Connections, **settings: Any) -> None:
        super().__init__(**settings)
        self._connections = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connections.add(self)
        self.loop.call_later(REQUEST_S, self._close_without_request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        is_first = self.cycle is None
        super().handle_events()
        if is_first and self.cycle is not None:
            self._connections.request(self, dict(self.scope["headers"]))

    def drop(self) -> None:
        self._connections.remove(self)
        self.transport.abort()

    def _close_without_request(self) -> None:
        if self.cycle is None:
            self.drop()


class Server(uvicorn.Server):
    """Accepts one connection after another, each when there is a place for it."""

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, tokens: Tokens | None
    ) -> None:
        super().__init__(config)
        self._listening, self._connections = listening, Connections(tokens)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Start to accept connections."""
        await super().startup(sockets=[])
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Accept no more, and close those that are open."""
        self._accepting.cancel()
        await super().shutdown(sockets=[self._listening])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._connections.wait_for_place()
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError:  # it is gone already, or there are no file descriptors
                await asyncio.sleep(GRACE_S)
                continue
            await loop.connect_accepted_socket(self._protocol, accepted)

    def _protocol(self) -> _Protocol:
        return _Protocol(
            self._connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
