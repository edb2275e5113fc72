"""Draw charts as SVG in a separate process while the next charts are made.

A thread is not enough: vl_convert holds the interpreter lock while it draws.
"""

import json
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import vl_convert

from wattlaw.isolation import isolated_environment, isolated_python

_DIGITS = re.compile(r"(\.\d\d)\d+")
_TAG = re.compile("<[^>]*>")


def to_svg(spec: dict[str, Any]) -> str:
    """Return a chart as SVG, without the labels of single marks for screen readers."""
    plain = {**spec, "config": {**spec.get("config", {}), "aria": False}}
    svg: str = vl_convert.vegalite_to_svg(plain)
    return _TAG.sub(lambda tag: _DIGITS.sub(r"\1", tag[0]), svg)


class Drawing:
    """A process that draws one chart after the other; it ends when its input is closed."""

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            isolated_python("-m", "wattlaw.report.drawing"),
            env=isolated_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._pool = ThreadPoolExecutor(max_workers=1)
        return self

    def svg(self, spec: dict[str, Any]) -> Future[str]:
        """Draw a chart in the process. If the process fails, the chart is drawn in this one."""
        return self._pool.submit(self._draw, spec)

    def _draw(self, spec: dict[str, Any]) -> str:
        child_in, child_out = self._child.stdin, self._child.stdout
        line = ""
        if child_in is not None and child_out is not None:
            try:
                print(json.dumps(spec), file=child_in, flush=True)
                line = child_out.readline()
            except BrokenPipeError:
                line = ""
        return str(json.loads(line)) if line else to_svg(spec)

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._child.communicate()


if __name__ == "__main__":
    for chart in sys.stdin:
        print(json.dumps(to_svg(json.loads(chart))), flush=True)
