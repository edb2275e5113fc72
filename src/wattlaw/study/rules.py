"""Texts of a study file with a meaning: fractions of the data set, placeholders of a command."""

import re
from typing import Any

from pydantic_core import PydanticCustomError

_RULE = re.compile(r"gpus/[1-9][0-9]{0,6}|[1-9][0-9]{0,6}/gpus")
FRACTIONS = "a list of numbers > 0 and <= 1, or of rules such as gpus/256 or 1/gpus"


class LocatedError(ValueError):
    """An invalid value, and its location within the validated model."""

    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(message)
        self.location = location


def parse_fraction(given: Any) -> float | str:
    """Return a fraction of the data set, or a rule that computes it from the number of GPUs.

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
    """Return the fraction of the data set that a rule gives for a number of GPUs."""
    if isinstance(rule, float):
        return rule
    numerator, denominator = (gpus if part == "gpus" else int(part) for part in rule.split("/"))
    return numerator / denominator


#: Names that an argument of a command may have in braces.
PLACEHOLDERS = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "precision",
    "dataset_fraction", "epochs", "warmup_epochs", "seed", "repeat",
)  # fmt: skip
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def substitute(word: str, values: dict[str, object]) -> str:
    """Return an argument of a command with the values of a run; ``{{`` and ``}}`` are braces.

    Raises
    ------
    ValueError
        It has an unknown name or a single brace.
    """

    def replacement(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in values:
            raise ValueError(
                f"given {word!r:.80}; allowed in braces: {', '.join(values)} ({{{{ is a brace)"
            )
        value = values[match[1]]
        return _number(value) if isinstance(value, float) else "" if value is None else str(value)

    return _BRACES.sub(replacement, word)


def _number(value: float) -> str:
    """Return the shortest exact text of a number: 200.0 as 200."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)
