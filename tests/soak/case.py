"""One input of the fuzzers: files, a command line and an environment, made from its seed."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A thing in a folder: a file, or what an attacker puts in its place."""

    kind: str = "file"  # file, fifo, dir, link, sparse or template
    data: bytes = b""
    text: str = ""  # the target of a link, or the name of a template
    size: int = 0  # of a sparse file, in bytes
    mode: int | None = None

    def put(self, path: Path, templates: Path) -> None:
        if os.path.lexists(path) and not (path.is_dir() and not path.is_symlink()):
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.kind == "file":
            path.write_bytes(self.data)
        elif self.kind == "fifo":
            os.mkfifo(path)
        elif self.kind == "dir":
            path.mkdir(exist_ok=True)
        elif self.kind == "link":
            path.symlink_to(self.text)
        elif self.kind == "sparse":
            path.touch()
            os.truncate(path, self.size)
        elif self.kind == "template":
            _link_tree(templates / self.text, path)
        if self.mode is not None and self.kind != "link":
            path.chmod(self.mode)


@dataclass(frozen=True)
class Case:
    """An input and what is done with it.

    Words of ``argv`` and values of ``env`` may name ``{inputs}``, ``{work}`` and ``{root}``.
    """

    reader: str  # what reads the input, as the table of results names it
    argv: tuple[str, ...] = ()
    files: dict[str, Entry] = field(default_factory=dict)  # by path below ``inputs``
    env: dict[str, str | None] = field(default_factory=dict)  # None: not set
    outputs: tuple[str, ...] = ()  # what may be new in the folder of work
    call: str = "wattlaw"  # or the name of a function in soak.parsers
    options: dict[str, Any] = field(default_factory=dict)  # of that function
    changes_inputs: bool = False


def _link_tree(source: Path, target: Path) -> None:
    """Make a copy of hard links: it costs no space, and a file that is replaced is the copy's."""
    if source.is_file():
        os.link(source, target)
        return
    for folder, _, names in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in names:
            os.link(Path(folder, name), here / name)
