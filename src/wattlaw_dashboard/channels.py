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
#: Reading and computing take at most this share of the time of a core.
SHARE = 0.1


@dataclass
class Channel:
    """One page: the function that computes its parts, its last parts, and its viewers."""

    path: str
    compute: Callable[[], Parts]
    viewers: int = 0
    _parts: Parts = field(default_factory=dict)
    _due_s: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def fresh(self) -> Parts:
        """Return the parts, computed anew if it is time; if that fails, the last and the reason."""
        async with self._lock:
            begin_s = time.monotonic()
            if begin_s < self._due_s:
                return self._parts
            try:
                self._parts = {**await asyncio.to_thread(self.compute), PROBLEM: ""}
            except Exception as error:  # the viewers see it, and the next period may succeed
                if isinstance(error, NoSuchRun) and not self._parts:
                    raise
                text = escape(replace_invisible(one_line(error)))
                self._parts = {**self._parts, PROBLEM: text}
            now_s = time.monotonic()
            self._due_s = now_s + max(PERIOD_S, (now_s - begin_s) / SHARE)
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
