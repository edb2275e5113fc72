"""A command of the user: its arguments, the values in them, and its progress in its log."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from wattlaw.common.text import join_names
from wattlaw.study.base_model import MAX_COUNT, LocatedError, Model
from wattlaw.study.setting import LAYOUT, Setting

_PROGRESS_GROUPS = ("epoch", "step", "samples", "loss", "metric")
#: Names that an argument of a command may have in braces.
PLACEHOLDERS = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "power_profile",
    "precision", "tp", "pp", "cp", "ep", "dp", "virtual_stages", "micro_batch",
    "gradient_accumulation", "sharding", "checkpointing", "sequence_parallel", "dataset_fraction",
    "epochs", "warmup_epochs", "steps", "warmup_steps", "seconds", "seed", "repeat", "python",
)  # fmt: skip
#: What follows from a layout and is a value of a command's arguments.
_FOLLOWS = ("dp", "micro_batch", "gradient_accumulation")
_EPOCHS = re.compile(r"-{1,2}(num[-_]|num[-_]train[-_]|max[-_])?epochs")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def setting_values(setting: Setting) -> dict[str, object]:
    """Return what a setting says for the braces of a command."""
    return {name: getattr(setting, name) for name in (*LAYOUT, *_FOLLOWS)} | setting.to_record()


def substitute(word: str, values: dict[str, object]) -> str:
    """Return an argument of a command with the values of a run; ``{{`` and ``}}`` are braces.

    An unknown name or a single brace is a ``ValueError``.
    """

    def replacement(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in values:
            raise ValueError(
                f"given {word!r:.80}; allowed in braces: {', '.join(values)} ({{{{ is a brace)"
            )
        value = values[match[1]]
        if isinstance(value, bool):
            return str(value).lower()
        return _number(value) if isinstance(value, float) else "" if value is None else str(value)

    return _BRACES.sub(replacement, word)


def _number(value: float) -> str:
    """Return the shortest exact text of a number: 200.0 as 200."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)


@dataclass(frozen=True)
class Argument:
    """A value in the arguments of a command; one to be added is None."""

    index: int
    name: str  # of its option, or ``argument N``
    prefix: str = ""  # of the word before the value, such as ``--batch-size=``
    value: str | None = None


def arguments(command: Sequence[str]) -> Iterator[Argument]:
    """Yield the values after the script: of options, of words such as ``lr=0.1``, and alone."""
    scripts = [index for index, word in enumerate(command) if word.endswith(".py")]
    for index in range((scripts or [0])[0] + 1, len(command)):
        word, before = command[index], command[index - 1]
        name, equals, value = word.partition("=")
        if equals:
            yield Argument(index, name, f"{name}=", value)
        else:
            is_option = before.startswith("-") and "=" not in before
            yield Argument(index, before if is_option else f"argument {index}", "", word)


def command_of(options: object) -> list[str]:
    """Return the words in the column ``options`` of a run; none of what is no command."""
    words = json.loads(options).get("command") if isinstance(options, str) else None
    return [*map(str, words)] if isinstance(words, list) else []


def epochs_argument(command: Sequence[str]) -> Argument | None:
    """Return the argument that says how many epochs a command trains; the last one counts."""
    found = [each for each in arguments(command) if _EPOCHS.fullmatch(each.name)]
    value = (found[-1].value or "") if found else ""
    is_count = value.isascii() and value.isdigit() and 0 < int(value) <= MAX_COUNT
    return found[-1] if is_count else None


class LogProgress(Model):
    """How a command's progress is read from the lines of its output."""

    pattern: str = Field(
        max_length=1000, description="a regular expression with the named group epoch or step"
    )

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        try:
            names = set(re.compile(self.pattern).groupindex)
        except (re.error, RecursionError, OverflowError) as error:
            raise LocatedError(f"not a regular expression: {error}", "pattern") from None
        if not names <= {*_PROGRESS_GROUPS} or not names & {"epoch", "step"}:
            raise LocatedError(
                f"given the named groups {join_names(sorted(names)) or 'none'}; allowed: "
                f"{join_names(_PROGRESS_GROUPS)}, with epoch or step",
                "pattern",
            )
        return self
