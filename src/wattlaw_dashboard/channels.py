"""What a page shows, computed once for all that look at it, and sent to them as events.

A page consists of parts of HTML. Only parts that have changed are sent, as server-sent events.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from html import escape

from wattlaw.common.errors import NoSuchRun, one_line
from wattlaw.common.formatting import replace_invisible

Parts = dict[str, str]

#: The part that says why the page cannot be computed; empty if it can.
PROBLEM = "problem"
#: The shortest time between two states, and a quiet time after which a comment shows that the
#: connection is alive.
PERIOD_S, _ALIVE_S = 1.0, 10.0
#: Computing takes at most this share of the time of a core.
_SHARE = 0.1
#: Viewers that take no events lose old ones: parts replace each other.
_WAITING = 8


@dataclass
class Channel:
    """One page: the function that computes its parts, its last parts, and its viewers."""

    path: str
    compute: Callable[[], Parts]
    parts: Parts = field(default_factory=dict)
    _viewers: set["asyncio.Queue[Parts]"] = field(default_factory=set)
    _task: "asyncio.Task[None] | None" = None
    _computed_s: float = -1e9
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def has_viewers(self) -> bool:
        return bool(self._viewers)

    async def fresh(self) -> Parts:
        """Return parts that are at most a period old, the last ones with the problem if they fail.

        Raises ``NoSuchRun`` if there never was such a page.
        """
        async with self._lock:
            if time.monotonic() - self._computed_s > PERIOD_S:
                try:
                    self.parts = {**await asyncio.to_thread(self.compute), PROBLEM: ""}
                except Exception as error:  # the viewers see it, and the next period may succeed
                    if isinstance(error, NoSuchRun) and not self.parts:
                        raise
                    text = escape(replace_invisible(one_line(error)))
                    self.parts = {**self.parts, PROBLEM: text}
                self._computed_s = time.monotonic()
            return self.parts

    async def events(self) -> AsyncIterator[str]:
        """Yield all parts, and then those that change, as server-sent events."""
        queue: asyncio.Queue[Parts] = asyncio.Queue(_WAITING)
        self._viewers.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._update())
        try:
            yield _event(await self.fresh())
            while True:
                try:
                    yield _event(await asyncio.wait_for(queue.get(), _ALIVE_S))
                except TimeoutError:
                    yield ": alive\n\n"
        finally:
            self._viewers.discard(queue)
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _update(self) -> None:
        before, took_s = await self.fresh(), 0.0
        while True:
            await asyncio.sleep(max(PERIOD_S, took_s / _SHARE))
            begin_s = time.monotonic()
            now = await self.fresh()
            took_s = time.monotonic() - begin_s
            changed = {name: html for name, html in now.items() if before.get(name) != html}
            for queue in self._viewers if changed else ():
                waiting = queue.get_nowait() if queue.full() else {}
                queue.put_nowait({**waiting, **changed})
            before = now


def _event(parts: Parts) -> str:
    return f"data: {json.dumps(parts)}\n\n"
