"""What a study file may say in words: a share of the data set, a word of a command."""

import re
from typing import Any

from pydantic_core import PydanticCustomError

_RULE = re.compile(r"gpus/(?P<below>[1-9][0-9]{0,6})|(?P<above>[1-9][0-9]{0,6})/gpus")
FRACTIONS = "a list of numbers > 0 and <= 1, or of rules such as gpus/256 or 1/gpus"


class LocatedError(ValueError):
    """Parts of a study that do not fit together, and the place within what was checked."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place


def parse_fraction(given: Any) -> float | str:
    """Return a share of the data set, or the rule that makes one from the number of GPUs.

    Raises
    ------
    ValueError
        It is neither.
    """
    if isinstance(given, str) and _RULE.fullmatch(given):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= 1:
        return float(given)
    raise PydanticCustomError("fraction", FRACTIONS)


def evaluate_fraction(rule: float | str, gpus: int) -> float:
    """Return the share of the data set that a rule means with so many GPUs."""
    if isinstance(rule, float):
        return rule
    above, below = (gpus if part == "gpus" else int(part) for part in rule.split("/"))
    return above / below


#: What a word of a command may name in braces.
PLACEHOLDERS = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "precision",
    "dataset_fraction", "epochs", "warmup_epochs", "seed", "repeat",
)  # fmt: skip
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def substitute(word: str, values: dict[str, object]) -> str:
    """Return a word of a command with the values of a run; ``{{`` and ``}}`` are braces.

    Raises
    ------
    ValueError
        It names something else than ``values``, or has a lone brace.
    """

    def value(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        if found[1] not in values:
            raise ValueError(
                f"given {word!r:.80}; allowed in braces: {', '.join(values)} ({{{{ is a brace)"
            )
        told = values[found[1]]
        return _number(told) if isinstance(told, float) else "" if told is None else str(told)

    return _BRACES.sub(value, word)


def _number(value: float) -> str:
    """Return a number as short as it can be told exactly: 200.0 as 200."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)
