"""Run the code of docs/gallery.md and draw its pictures: python tools/gallery.py [FOLDER].

A block of code whose last line is a chart has a picture, which the link below it names.
"""

import ast
import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"
_BLOCK = re.compile(r"```python\n(.*?)```\n+(?:!\[[^\]]+\]\(([^)]+)\))?", re.DOTALL)


def pictures() -> Iterator[tuple[str, Any]]:
    """Run the page in the present folder, and yield the path of each picture and its chart."""
    names: dict[str, Any] = {}
    for code, path in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        *first, last = ast.parse(code).body
        if not path:
            exec(code, names)  # noqa: S102
            continue
        exec(compile(ast.Module(first, []), PAGE.name, "exec"), names)  # noqa: S102
        if not isinstance(last, ast.Expr):
            raise SystemExit(f"{path}: the code above does not end with a chart")
        yield path, eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names)  # noqa: S307


def main(folder: Path = PAGE.parent) -> None:
    target = folder.resolve()
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        for name, chart in pictures():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            chart.save(str(path))
            print(path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
