"""What a part of the soak has tried and what has failed, and the table of all parts."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Failure:
    """What fails in the same way, with the seed of the first time."""

    what: str
    cause: str
    detail: str
    replay: str
    log: str = ""
    count: int = 0


@dataclass
class Outcome:
    part: str
    tried: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)  # what was killed

    def failed(self, what: str, cause: str, detail: str, seed: str, log: str = "") -> None:
        """Count a failure of the input or round of a seed."""
        same = [one for one in self.failures if (one.what, one.cause) == (what, cause)]
        if not same:
            same = [Failure(what, cause, detail, f"{self.part}:{seed}", log)]
            self.failures += same
        same[0].count += 1

    def write(self, folder: Path) -> None:
        told = {**vars(self), "failures": [vars(one) for one in self.failures]}
        (folder / f"{self.part}.json").write_text(json.dumps(told, indent=1))

    @classmethod
    def read(cls, path: Path) -> "Outcome":
        told = json.loads(path.read_text())
        failures = [Failure(**one) for one in told.pop("failures")]
        return cls(told["part"], Counter(told["tried"]), failures, told["notes"])


def table(parts: Iterable[Outcome]) -> str:
    lines, told = [f"{'what':<40}  {'tried':>10}  {'failed':>6}"], []
    for part in parts:
        for what in sorted(part.tried.keys() | part.notes.keys()):
            mine = [one for one in part.failures if one.what == what]
            failed = sum(one.count for one in mine)
            note = part.notes.get(what, "")
            lines.append(f"{what:<40}  {part.tried[what]:>10,}  {failed:>6,}  {note}".rstrip())
        for one in sorted(part.failures, key=lambda one: -one.count):
            told += [
                f"\n{one.what}: {one.cause} ({one.count} times)",
                f"    {ascii(one.detail)[1:300]}",
                f"    python -m soak replay {one.replay}",
            ]
    return "\n".join(lines + told)
