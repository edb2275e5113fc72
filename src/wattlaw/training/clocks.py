"""How far the clocks of a run's hosts are from each other, asked over the network.

Cristian 1989 (doi 10.1007/BF01784024): a host notes when it asks (t0) and when it has the answer
(t1), which says what the reference's clock showed (s) somewhere in between. Half way the host's
own clock showed (t0 + t1) / 2, so it is ahead by (t0 + t1) / 2 - s, and that is within (t1 - t0) /
2 of the truth however the round trip was divided. Of several rounds the quickest counts.
"""

import datetime
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from wattlaw.files import write_text
from wattlaw.store.record import ClockReport
from wattlaw.training.environment import host_name

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

At = Literal["begin", "end"]
ROUNDS = 20
#: How long nodes wait for each other; at the end they come together. And for one answer.
PATIENCE_S: dict[At, float] = {"begin": 60.0, "end": 15.0}
_ANSWER_S, _LAST_S = 5.0, 30.0


class Endpoint(NamedTuple):
    """Where nodes compare their clocks: on the first one, which is the reference."""

    address: str
    port: int
    node: int  # number of this node; the first is 0
    nodes: int


class Round(NamedTuple):
    """One question and its answer, ns since 1970."""

    asked_ns: int  # by the host's clock
    reference_ns: int  # the answer
    answered_ns: int  # by the host's clock


def offset_of(rounds: Sequence[Round]) -> tuple[float, float]:
    """Return by how much the host's clock is ahead of the reference's, and within what, both in s.

    Parameters
    ----------
    rounds
        One or more. One in which a clock was set back tells nothing.

    Raises
    ------
    ValueError
        No round tells anything.
    """
    told = [one for one in rounds if one.answered_ns >= one.asked_ns]
    if not told:
        raise ValueError("no question was answered")
    best = min(told, key=lambda one: one.answered_ns - one.asked_ns)
    ahead_ns = best.asked_ns + best.answered_ns - 2 * best.reference_ns
    return ahead_ns / 2e9, (best.answered_ns - best.asked_ns) / 2e9


class Clocks:
    """Compares this host's clock with the first node's, and writes what it found.

    Nothing that goes wrong with it stops a run: what is not found out is not reported, and said.

    Parameters
    ----------
    endpoint
        Where nodes meet; None: nothing is compared.
    live
        The attempt's live folder, for ``clocks.HOST.json``.
    """

    def __init__(self, endpoint: Endpoint | None, live: Path) -> None:
        self._endpoint, self._live = endpoint, live
        self._reports: list[ClockReport] = []
        self._store: TCPStore | None = None
        self._work: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._work is not None:  # a thread that is still in torch at the end would abort it
            self._work.join(_LAST_S)
        self._store = None  # and with it, on the first node, what the others ask

    def compare(self, at: At) -> None:
        """Compare clocks; the first node answers, and ends when all others have asked."""
        if self._endpoint is None or self._endpoint.nodes < 2:
            return
        import torch.distributed  # noqa: F401 - seconds that are no part of the patience

        # In a thread: what waits in torch hears no signal, and this way the agent does.
        self._work = threading.Thread(target=self._compare, args=(self._endpoint, at), daemon=True)
        self._work.start()
        self._work.join(PATIENCE_S[at] + 2 * _ANSWER_S)
        if self._work.is_alive():
            self._say(at, "no answer")
        told = [one.model_dump() for one in self._reports]
        try:
            write_text(self._live / f"clocks.{host_name()}.json", json.dumps(told))
        except OSError as error:
            self._say(at, str(error))

    def _compare(self, endpoint: Endpoint, at: At) -> None:
        patience_s = PATIENCE_S[at]
        try:
            if endpoint.node == 0:
                self._store = self._store or _store(endpoint, patience_s)
                missing = answer(self._store, endpoint.nodes - 1, at, patience_s)
                if missing:
                    self._say(at, f"{missing} of {endpoint.nodes} nodes did not ask")
                return
            # A new connection: between begin and end of a run, one may be taken for dead.
            reference, rounds = ask(_store(endpoint, patience_s), at, patience_s)
            offset_s, uncertainty_s = offset_of(rounds)
        except (RuntimeError, ValueError) as error:
            self._say(at, " ".join(str(error).split())[:200])
            return
        self._reports.append(
            ClockReport(
                host=host_name(),
                reference=reference,
                at=at,
                offset_s=offset_s,
                uncertainty_s=uncertainty_s,
            )
        )

    def _say(self, at: At, words: str) -> None:
        print(f"clocks were not compared at the {at}: {words}", file=sys.stderr)


def _store(endpoint: Endpoint, patience_s: float) -> "TCPStore":
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        endpoint.address,
        endpoint.port,
        is_master=endpoint.node == 0,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=patience_s),
    )


def answer(store: "TCPStore", others: int, at: At, patience_s: float) -> int:
    """Answer other nodes, in the order in which they come; return how many never came.

    Parameters
    ----------
    store
        Through which nodes talk.
    others
        How many are to come.
    at
        Which comparison it is.
    patience_s
        For how long they are waited for.
    """
    end_s = time.monotonic() + patience_s
    store.set(f"{at}/reference", host_name())
    for turn in range(1, others + 1):
        try:
            for number in range(ROUNDS + 1):  # the last is no question, but says that all was heard
                left_s = end_s - time.monotonic() if number == 0 else _ANSWER_S
                store.wait([f"{at}/{turn}/asked/{number}"], _seconds(left_s))
                if number < ROUNDS:
                    store.set(f"{at}/{turn}/answer/{number}", str(time.time_ns()))
        except RuntimeError:
            if number == 0:
                return others - turn + 1
    return 0


def ask(store: "TCPStore", at: At, patience_s: float) -> tuple[str, list[Round]]:
    """Ask the first node for its time; return its host and the rounds.

    Raises
    ------
    RuntimeError
        It does not answer.
    """
    reference = store.get(f"{at}/reference").decode()
    turn, rounds = store.add(f"{at}/turns", 1), []
    for number in range(ROUNDS):
        key = f"{at}/{turn}/answer/{number}"
        asked_ns = time.time_ns()
        store.set(f"{at}/{turn}/asked/{number}", "")
        store.wait([key], _seconds(patience_s if number == 0 else _ANSWER_S))
        answered_ns = time.time_ns()  # it was given before this
        rounds.append(Round(asked_ns, int(store.get(key)), answered_ns))
    store.set(f"{at}/{turn}/asked/{ROUNDS}", "")
    return reference, rounds


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(0.001, seconds))
