"""The parts that go round by round, each round from its number and the seed."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from soak import disks, folders, kills_campaigns, kills_capped
from soak.killing import Fault, Killer
from soak.outcome import Outcome
from soak.sandbox import Sandbox, sandbox

#: Kills or rounds of a part, so that on two cores most of the time is the fuzzers'.
PER_MINUTE = {"caps": 5.0, "amd-caps": 5.0, "runs": 4.5, "disks": 0.5, "folder": 0.5}


class Round(Protocol):
    """What is done once, with a check at its end."""

    def go(self) -> None:
        """Carry it out; raise ``Fault`` where something is wrong."""


#: By the name of the part: what the table calls it, and what makes a round.
ROUNDS: dict[str, tuple[str, Callable[[Killer], Round]]] = {
    "caps": (kills_capped.WHAT, kills_capped.CappedRound),
    "amd-caps": (kills_capped.WHAT_AMD, kills_capped.AmdRound),
    "runs": (kills_campaigns.WHAT, kills_campaigns.CampaignRound),
    "disks": (disks.WHAT, disks.DiskRound),
    "folder": (folders.WHAT, folders.FolderRound),
}


def part(kind: str) -> Callable[[int, float, Path, Outcome], None]:
    """Return the function that goes round by round until a moment of the monotonic clock."""

    def go(seed: int, end_s: float, _: Path, told: Outcome) -> None:
        if reason := missing(kind):
            told.skipped(ROUNDS[kind][0], reason)
            return
        with sandbox(kind) as own:
            number, begin_s = 0, time.monotonic()
            while time.monotonic() < end_s:
                one_round(kind, f"{seed}:{number}", own, told)
                number += 1
                due_s = begin_s + told.inputs * 60 / PER_MINUTE[kind]
                time.sleep(max(0.0, min(due_s, end_s) - time.monotonic()))

    return go


def missing(kind: str) -> str | None:
    """Return what this machine lacks for a part."""
    return disks.missing() if kind == "disks" else None


def one_round(kind: str, seed: str, own: Sandbox, told: Outcome) -> bool:
    """Do one round in an empty sandbox; return whether all is well."""
    own.end_all()
    own.empty()
    what, make = ROUNDS[kind]
    killer = Killer(own, random.Random(f"{kind}:{seed}"))
    try:
        make(killer).go()
    except Fault as fault:
        cause, detail = map(str, fault.args)
        logs = [*own.work.rglob("*.log"), *own.work.rglob("log.txt")]
        output = "\n".join(path.read_text("utf-8", "replace") for path in sorted(logs))
        problem = {"kind": kind, "seed": seed, "problem": f"{cause}: {detail}"}
        text = json.dumps(problem | {"log": killer.log, "output": output[-20_000:]}, indent=1)
        told.failed(what, cause, detail, lambda path: _write(path, text))
        return False
    finally:
        own.end_all()
        if kind in ("caps", "runs"):
            told.killed(what, killer.kills)
        else:
            told.tried(what)
    return True


def _write(path: Path, text: str) -> None:
    path.write_text(text)
