"""Clock offsets between the hosts of a run, measured over the network.

Method of Cristian 1989 (doi 10.1007/BF01784024): a host sends a request at t0 and receives the
reply at t1. The reply contains the time s of the reference's clock in between. The host's clock is
ahead by (t0 + t1) / 2 - s, with an uncertainty of (t1 - t0) / 2 for any split of the round trip.
The quickest of several rounds counts.
"""

import datetime
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from wattlaw.common.files import write_text
from wattlaw.common.text import collapse_whitespace
from wattlaw.run.training.environment import host_name
from wattlaw.store.record import ClockReport

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

Moment = Literal["begin", "end"]
ROUNDS = 20
#: How long nodes wait for each other; at the end of a run they arrive together.
TIMEOUT_S: dict[Moment, float] = {"begin": 60.0, "end": 15.0}
#: How long a node waits for one message, and for its thread at the end.
_MESSAGE_S, _JOIN_S = 5.0, 30.0


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
        self._store: TCPStore | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:  # the interpreter would abort if it ended inside torch
            self._thread.join(_JOIN_S)
        self._store = None  # on the first node this closes the server

    def compare(self, at: Moment) -> None:
        """Compare clocks; on the first node, serve all other nodes."""
        if self._endpoint is None or self._endpoint.nodes < 2:
            return
        if importlib.util.find_spec("torch") is None:  # a command needs none
            self._log(at, "torch is not installed")
            return
        import torch.distributed  # noqa: F401 - takes seconds before the timeout begins

        # In a thread, because waiting in torch would block the agent's signal handlers.
        arguments = self._endpoint, at
        self._thread = threading.Thread(target=self._compare, args=arguments, daemon=True)
        self._thread.start()
        self._thread.join(TIMEOUT_S[at] + 2 * _MESSAGE_S)
        if self._thread.is_alive():
            self._log(at, "no reply")
        reports = [report.model_dump() for report in self._reports]
        try:
            write_text(self._live / f"clocks.{host_name()}.json", json.dumps(reports))
        except OSError as error:
            self._log(at, str(error))

    def _compare(self, endpoint: Endpoint, at: Moment) -> None:
        timeout_s = TIMEOUT_S[at]
        try:
            if endpoint.node == 0:
                self._store = self._store or _store(endpoint, timeout_s)
                missing = serve_time(self._store, endpoint.nodes - 1, at, timeout_s)
                if missing:
                    self._log(at, f"no request from {missing} of {endpoint.nodes} nodes")
                return
            # A new connection, because an idle one may be closed during a long run.
            reference, rounds = request_times(_store(endpoint, timeout_s), at, timeout_s)
            offset_s, uncertainty_s = offset_of(rounds)
        except (RuntimeError, ValueError) as error:
            self._log(at, collapse_whitespace(str(error))[:200])
            return
        measured = {"offset_s": offset_s, "uncertainty_s": uncertainty_s}
        report = ClockReport(host=host_name(), reference=reference, at=at, **measured)
        self._reports.append(report)

    def _log(self, at: Moment, message: str) -> None:
        print(f"clocks were not compared at the {at}: {message}", file=sys.stderr)


def _store(endpoint: Endpoint, timeout_s: float) -> "TCPStore":
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        endpoint.address,
        endpoint.port,
        is_master=endpoint.node == 0,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def serve_time(store: "TCPStore", others: int, at: Moment, timeout_s: float) -> int:
    """Reply to each other node's requests; return the number of nodes that sent no request."""
    end_s = time.monotonic() + timeout_s
    store.set(f"{at}/reference", host_name())
    for turn in range(1, others + 1):
        try:
            for number in range(ROUNDS + 1):  # the last request only confirms the last reply
                left_s = end_s - time.monotonic() if number == 0 else _MESSAGE_S
                store.wait([f"{at}/{turn}/request/{number}"], _seconds(left_s))
                if number < ROUNDS:
                    store.set(f"{at}/{turn}/reply/{number}", str(time.time_ns()))
        except RuntimeError:
            if number == 0:
                return others - turn + 1
    return 0


def request_times(store: "TCPStore", at: Moment, timeout_s: float) -> tuple[str, list[Round]]:
    """Return the first node's host and the rounds; ``RuntimeError`` if it does not reply."""
    reference = store.get(f"{at}/reference").decode()
    turn, rounds = store.add(f"{at}/turns", 1), []
    for number in range(ROUNDS):
        key = f"{at}/{turn}/reply/{number}"
        sent_ns = time.time_ns()
        store.set(f"{at}/{turn}/request/{number}", "")
        store.wait([key], _seconds(timeout_s if number == 0 else _MESSAGE_S))
        received_ns = time.time_ns()  # before ``get``, which is a second round trip
        rounds.append(Round(sent_ns, int(store.get(key)), received_ns))
    store.set(f"{at}/{turn}/request/{ROUNDS}", "")
    return reference, rounds


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(0.001, seconds))
