"""What programs that train large language models print: ``training_programs.toml``.

It was checked against the source that prints, and against logs (docs/formats.md).
"""

import re
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

#: ``name ..... value``, ``name: value``, ``"name": value`` and ``name=value``.
_VALUE = re.compile(
    r"""(?<![\w.])(\w{2,60})['"]?(?: ?\.{2,99} |: | ?= ?|  {1,60})['"]?([\w.+-]+)"""
)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A row of the table. ``step`` has the groups ``step`` and ``value``, and if printed ``total``,
    ``batch`` and ``energy`` (J of a GPU and step). ``keys`` are settings by the names that the
    program prints, ``facts`` other lines with settings as groups, ``memory`` peaks of a GPU with
    their unit in bytes. ``timing`` says what ``value`` is: milliseconds or seconds of a step,
    tokens per second of a GPU, or mean samples per second of all steps since the second."""

    name: str
    hints: list[str]  # in logs of this program, and in no others
    word: str  # in lines of steps
    step: re.Pattern[str]
    timing: Literal["ms", "s", "tokens_per_s", "mean_samples_per_s"]
    launch: re.Pattern[str]  # a line that begins a training
    memory: list[tuple[re.Pattern[str], float]]
    is_mean: bool = (
        True  # the time is a mean of the steps since the line before, not of the last one
    )
    is_from_0: bool = False  # the number of a step is that of the steps before it
    is_reserved: bool = False  # the memory is what torch has reserved, not allocated
    keys: dict[str, str] = field(default_factory=dict)
    facts: list[re.Pattern[str]]

    def printed(self, line: str) -> dict[str, str]:
        known = {
            name: text
            for pattern in self.facts
            if (match := pattern.search(line)) is not None
            for name, text in match.groupdict().items()
            if text is not None
        }
        for name, text in _VALUE.findall(line) if self.keys else ():
            if name in self.keys:
                known.setdefault(self.keys[name], text)
        return known


def _program(row: dict[str, Any]) -> Program:
    patterns = {
        "step": re.compile("".join(row["step"])),
        "launch": re.compile(row["launch"]),
        "memory": [(re.compile(text), unit) for text, unit in row["memory"]],
        "facts": [re.compile("".join(parts)) for parts in row["facts"]],
    }
    return Program(**(row | patterns))


_TABLE = files("wattlaw_formats").joinpath("training_programs.toml")
#: In the order in which they are tried: Megatron-DeepSpeed prints lines of both.
PROGRAMS = [_program(row) for row in tomllib.loads(_TABLE.read_text("utf-8"))["program"]]
