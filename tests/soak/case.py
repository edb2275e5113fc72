"""One input of the fuzzers: files, a command line and an environment; kept as a JSON file."""

import base64
import json
import os
import zlib
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
        """Make it; what is there is replaced."""
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
    seed: str
    argv: tuple[str, ...] = ()
    files: dict[str, Entry] = field(default_factory=dict)  # by path below ``inputs``
    env: dict[str, str | None] = field(default_factory=dict)  # None: not set
    outputs: tuple[str, ...] = ()  # what may be new in the folder of work
    call: str = "wattlaw"  # or the name of a function in soak.parsers
    options: dict[str, Any] = field(default_factory=dict)  # of that function
    encoding: str = "utf-8"  # of the output
    is_process: bool = False  # a process of its own, not a call within the worker

    def save(self, path: Path, problem: str) -> None:
        """Write it as a file that ``python -m soak replay`` takes."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        told["files"] = {name: _packed(entry) for name, entry in self.files.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"kind": "input", "problem": problem, **told}, indent=1))

    @classmethod
    def load(cls, told: dict[str, Any]) -> "Case":
        """Return the case that a file keeps."""
        names = {name: told[name] for name in cls.__dataclass_fields__ if name in told}
        names["files"] = {name: _unpacked(entry) for name, entry in told["files"].items()}
        for name in ("argv", "outputs"):
            names[name] = tuple(names[name])
        return cls(**names)


def _packed(entry: Entry) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": entry.kind}
    if entry.data:
        try:
            told["data"] = entry.data.decode("ascii") if len(entry.data) < 20_000 else None
        except UnicodeDecodeError:
            told["data"] = None
        if told["data"] is None:
            del told["data"]
            told["zlib"] = base64.b64encode(zlib.compress(entry.data)).decode()
    told |= {"text": entry.text} if entry.text else {}
    told |= {"size": entry.size} if entry.size else {}
    return told | ({"mode": entry.mode} if entry.mode is not None else {})


def _unpacked(told: dict[str, Any]) -> Entry:
    data = told.pop("data", "").encode("ascii")
    if "zlib" in told:
        data = zlib.decompress(base64.b64decode(told.pop("zlib")))
    return Entry(data=data, **told)


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
