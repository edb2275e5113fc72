"""Clock offsets between the hosts of a run, measured over the network.

Method of Cristian 1989 (doi 10.1007/BF01784024): a host sends a request at t0 and receives the
reply at t1. The reply contains the time s of the reference's clock in between. The host's clock is
ahead by (t0 + t1) / 2 - s, with an uncertainty of (t1 - t0) / 2 for any split of the round trip.
The quickest of several rounds counts.
"""

import contextlib
import json
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from wattlaw.common.errors import one_line
from wattlaw.common.files import write_text
from wattlaw.running.training.environment import host_name
from wattlaw.store.record import ClockReport

Moment = Literal["begin", "end"]
ROUNDS = 20
#: How long nodes wait for each other; at the end of a run they arrive together.
TIMEOUT_S: dict[Moment, float] = {"begin": 60.0, "end": 15.0}
#: How long a node waits for one message, and before it tries again to connect.
_MESSAGE_S, _RETRY_S = 5.0, 0.1
_TIME = struct.Struct("<q")  # ns since 1970
#: What a node sends first, so that no other program, and no comparison at another moment, counts.
_HELLO: dict[Moment, bytes] = {"begin": b"wattlaw begin", "end": b"wattlaw end  "}


class Endpoint(NamedTuple):
    """The address of the first node, whose clock is the reference, and the number of this node."""

    address: str
    port: int
    node: int  # the first is 0
    nodes: int


class Round(NamedTuple):
    """One request and its reply, in ns since 1970."""

    sent_ns: int  # by the host's clock
    reference_ns: int  # by the reference's clock
    received_ns: int  # by the host's clock


def offset_of(rounds: Sequence[Round]) -> tuple[float, float]:
    """Return the offset of the host's clock and its uncertainty, both in s.

    The offset is positive if the host's clock is ahead of the reference's. A round in which the
    clock was set back is ignored; ``ValueError`` if no round remains.
    """
    valid = [each for each in rounds if each.received_ns >= each.sent_ns]
    if not valid:
        raise ValueError("no request was answered")
    best = min(valid, key=lambda each: each.received_ns - each.sent_ns)
    ahead_ns = best.sent_ns + best.received_ns - 2 * best.reference_ns
    return ahead_ns / 2e9, (best.received_ns - best.sent_ns) / 2e9


class Clocks:
    """Compares this host's clock with the first node's, and writes ``clocks.HOST.json``.

    A failure is printed; it does not stop the run. Without an endpoint nothing is compared.
    """

    def __init__(self, endpoint: Endpoint | None, live: Path) -> None:
        self._endpoint, self._live = endpoint, live
        self._reports: list[ClockReport] = []

    def compare(self, at: Moment) -> None:
        endpoint = self._endpoint
        if endpoint is None or endpoint.nodes < 2:
            return
        try:
            if endpoint.node == 0:
                missing = serve_time(endpoint, at)
                if missing:
                    raise ValueError(f"no request from {missing} of {endpoint.nodes} nodes")
            else:
                reference, rounds = request_times(endpoint, at)
                offset_s, uncertainty_s = offset_of(rounds)
                measured = {"offset_s": offset_s, "uncertainty_s": uncertainty_s}
                report = ClockReport(host=host_name(), reference=reference, at=at, **measured)
                self._reports.append(report)
        except (OSError, ValueError) as error:
            print(f"clocks were not compared at the {at}: {one_line(error)[:200]}", file=sys.stderr)
        reports = [report.model_dump() for report in self._reports]
        try:
            write_text(self._live / f"clocks.{host_name()}.json", json.dumps(reports))
        except OSError as error:
            print(f"clocks at the {at}: {error}", file=sys.stderr)


def serve_time(endpoint: Endpoint, at: Moment) -> int:
    """Reply to each other node's requests; return the number of nodes that sent none."""
    end_s, others = time.monotonic() + TIMEOUT_S[at], endpoint.nodes - 1
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", endpoint.port), family=family, dualstack_ipv6=dual) as server:
        while others:
            server.settimeout(max(0.001, end_s - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                break
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_MESSAGE_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if connection.recv(len(_HELLO[at])) != _HELLO[at]:
                    continue
                others -= 1
                connection.sendall(f"{host_name()}\n".encode())
                while connection.recv(1):
                    connection.sendall(_TIME.pack(time.time_ns()))
    return others


def request_times(endpoint: Endpoint, at: Moment) -> tuple[str, list[Round]]:
    """Return the first node's host and the rounds; ``OSError`` if it does not reply."""
    end_s = time.monotonic() + TIMEOUT_S[at]
    while True:
        try:
            return _request_times(endpoint, at, max(0.001, end_s - time.monotonic()))
        except OSError:  # the first node does not listen, or not yet at this moment of the run
            if time.monotonic() > end_s:
                raise
            time.sleep(_RETRY_S)


def _request_times(endpoint: Endpoint, at: Moment, left_s: float) -> tuple[str, list[Round]]:
    address = endpoint.address, endpoint.port
    with (
        socket.create_connection(address, left_s) as connection,
        connection.makefile("rb") as replies,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_HELLO[at])
        reference = replies.readline().decode().strip()  # after the nodes that came before
        connection.settimeout(_MESSAGE_S)
        rounds = []
        for _ in range(ROUNDS):
            sent_ns = time.time_ns()
            connection.sendall(b"?")
            reply = replies.read(_TIME.size)
            received_ns = time.time_ns()
            if len(reply) < _TIME.size:
                raise ConnectionError("the first node has closed the connection")
            rounds.append(Round(sent_ns, _TIME.unpack(reply)[0], received_ns))
    return reference, rounds
