"""Small files that unpack, decode or expand to gigabytes."""

import random
from pathlib import Path

from bombs import BOMBS
from soak.case import Case, Entry


def bombs(dice: random.Random, seed: str) -> Case:
    """Return a file and the command that reads it; it is refused with little memory and disk."""
    bomb = BOMBS[dice.choice(sorted(BOMBS))]
    name = f"bombs/{bomb.make.__name__}/{bomb.name}"
    argv = tuple(f"{{inputs}}/{bomb.name}" if word == "BOMB" else word for word in bomb.command)
    files = {bomb.name: Entry("template", text=name)}
    return Case("bombs", seed, argv, files, options={"refused": True}, is_process=True)


def build(folder: Path) -> None:
    """Write every bomb."""
    for name, bomb in BOMBS.items():
        path = folder / name / bomb.name
        path.parent.mkdir(parents=True)
        bomb.make(path)
