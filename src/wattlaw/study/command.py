"""A command of the user: the values in its arguments, and its progress in the lines of its log."""

import re
from typing import Self

from pydantic import Field, model_validator

from wattlaw.common.text import join_names
from wattlaw.study.base_model import LocatedError, Model

_PROGRESS_GROUPS = ("epoch", "step", "samples", "loss", "metric")
#: Names that an argument of a command may have in braces.
PLACEHOLDERS = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "power_profile",
    "precision", "tp", "pp", "cp", "ep", "dp", "virtual_stages", "micro_batch",
    "gradient_accumulation", "sharding", "checkpointing", "sequence_parallel", "dataset_fraction",
    "epochs", "warmup_epochs", "steps", "warmup_steps", "seconds", "seed", "repeat", "python",
)  # fmt: skip
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


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
