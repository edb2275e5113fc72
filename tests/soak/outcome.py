"""What a part of the soak has tried and what has failed; the table and the file of results."""

import json
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from soak.sandbox import REPOSITORY

OUTPUT = REPOSITORY / "tests" / "output" / "soak"
#: Of each cause so many inputs are kept.
_KEPT = 3
_WRITE_S = 2.0


@dataclass
class Row:
    """One kind of attempts."""

    tried: int = 0
    failed: int = 0
    note: str = ""  # why it was not tried, or what the attempts were
    kinds: dict[str, int] = field(default_factory=dict)


@dataclass
class Failure:
    """What fails in the same way."""

    what: str
    cause: str
    detail: str
    count: int = 0
    reproducers: list[str] = field(default_factory=list)


class Outcome:
    """The rows and failures of a part; written to a file again and again while it runs."""

    def __init__(self, part: str, output: Path = OUTPUT) -> None:
        self.part, self._output = part, output
        self.rows: dict[str, Row] = {}
        self.failures: dict[tuple[str, str], Failure] = {}
        self._written_s = 0.0
        output.mkdir(parents=True, exist_ok=True)

    @property
    def inputs(self) -> int:
        """How much has been tried, of all kinds together."""
        return sum(row.tried for row in self.rows.values())

    def tried(self, what: str, count: int = 1) -> None:
        """Count attempts."""
        self.rows.setdefault(what, Row()).tried += count
        if time.monotonic() - self._written_s > _WRITE_S:
            self.write()

    def killed(self, what: str, kills: Mapping[str, int]) -> None:
        """Count processes that were killed, by what they were."""
        self.tried(what, sum(kills.values()))
        row = self.rows[what]
        row.kinds = dict(Counter(row.kinds) + Counter(kills))
        row.note = ", ".join(f"{count} {name}" for name, count in sorted(row.kinds.items()))

    def skipped(self, what: str, why: str) -> None:
        """Tell why a kind of attempts is not made here."""
        self.rows.setdefault(what, Row()).note = f"skipped: {why}"

    def failed(
        self, what: str, cause: str, detail: str, save: Callable[[Path], None] | None = None
    ) -> None:
        """Count a failure; ``save`` writes the file that replays it."""
        self.rows.setdefault(what, Row()).failed += 1
        one = self.failures.setdefault((what, cause), Failure(what, cause, detail))
        one.count += 1
        if save is not None and len(one.reproducers) < _KEPT:
            slug = re.sub(r"[^A-Za-z0-9]+", "-", f"{what} {cause}")[:80].strip("-").lower()
            path = self._output / "reproducers" / f"{slug}.{one.count}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            save(path)
            one.reproducers.append(
                str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else str(path)
            )
        self.write()

    @property
    def path(self) -> Path:
        """Where the part's outcome is written."""
        return self._output / f"part.{self.part}.json"

    def write(self) -> None:
        """Write rows and failures as they are now."""
        self._written_s = time.monotonic()
        told = {
            "part": self.part,
            "rows": {name: asdict(row) for name, row in self.rows.items()},
            "failures": [asdict(one) for one in self.failures.values()],
        }
        part = self.path.with_suffix(".tmp")
        part.write_text(json.dumps(told))
        part.replace(self.path)


def read_all(output: Path) -> list[dict[str, Any]]:
    """Return what the parts have written so far."""
    return [json.loads(path.read_text()) for path in sorted(output.glob("part.*.json"))]


def table(parts: Iterable[dict[str, Any]]) -> str:
    """Return what was tried and what failed as a table, and each failure with its reproducer."""
    lines = [("what", "tried", "failed", "reproducer")]
    told = list(parts)
    for part in told:
        first = {one["what"]: one["reproducers"][:1] for one in reversed(part["failures"])}
        for name, row in part["rows"].items():
            path = next(iter(first.get(name, [])), "") or row["note"]
            lines.append((name, f"{row['tried']:,}", f"{row['failed']:,}", path))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    text = [
        f"{what:<{widths[0]}}  {tried:>{widths[1]}}  {failed:>{widths[2]}}  {path}".rstrip()
        for what, tried, failed, path in lines
    ]
    for part in told:
        for one in sorted(part["failures"], key=lambda one: -one["count"]):
            text += [
                "",
                f"{one['what']}: {one['cause']} ({one['count']} times)",
                f"    {ascii(one['detail'])[1:300]}",
            ]
            text += [f"    python -m soak replay {path}" for path in one["reproducers"][:1]]
    return "\n".join(text)


def results(
    parts: list[dict[str, Any]], seed: int, minutes: float, duration_s: float
) -> dict[str, Any]:
    """Return the file of results: what was tried where, when and with which seed."""
    return {
        "what": "make soak",
        "commit": _said("git", "-C", str(REPOSITORY), "rev-parse", "HEAD"),
        "changed_files": len(_said("git", "-C", str(REPOSITORY), "status",
        "--porcelain").splitlines()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {
            "machine": platform.machine(), "cores": _cores(), "processor": _processor(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "seed": seed,
        "minutes_asked": minutes,
        "duration_s": round(duration_s, 1),
        "tried": sum(row["tried"] for part in parts for row in part["rows"].values()),
        "failed": sum(row["failed"] for part in parts for row in part["rows"].values()),
        "parts": parts,
    }  # fmt: skip


def _said(*line: str) -> str:
    try:
        return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return sys.platform
