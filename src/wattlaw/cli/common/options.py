"""How options are declared, options that several commands share, and their values."""

import math
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from wattlaw.common.errors import BadInput
from wattlaw.common.terminal import print_note
from wattlaw.common.text import join_names, quote
from wattlaw.study import question
from wattlaw.study.base_model import MAX_COUNT, PowerProfile
from wattlaw.study.question import Function

if TYPE_CHECKING:
    from wattlaw.api.store_tables import StoreTables

Item = TypeVar("Item")


def option(metavar: str, text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, **settings)


def positive(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"{value:g} is not a finite number > 0")
    return value


StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Results folder.")]
StoreArguments = Annotated[list[Path], typer.Argument(metavar="STORE", help="Results folders.")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="Study file.")]
WorkloadOption = Annotated[
    str | None,
    option("W", "Workload. Default: that of the study, or the only one.", "--workload", "-w"),
]
BaselineOption = Annotated[
    str | None,
    option(
        "KEY=VALUE,...",
        "Setting to compare with: gpus=4,global_batch=256. Default: that of the study, or fastest.",
    ),
]
LaunchOption = Annotated[
    str | None, option("KIND", "Launcher instead of the study's: local, slurm, simulated, replay.")
]
TableOption = Annotated[Path | None, option("FILE", "Table of measurements for --launch replay.")]
PowersOption = Annotated[str | None, option("W,...", "Power limits per GPU; none: no limit.")]
ClocksOption = Annotated[str | None, option("MHZ,...", "Clock limits per GPU; none: no limit.")]
HardwareOption = Annotated[
    str | None, option("NAME|FILE", "Cluster or GPU; see 'wattlaw simulate --list-hardware'.")
]
PowerOption = Annotated[
    float | None, option("W", "Power limit per GPU.", "--power-limit", callback=positive)
]
ClockOption = Annotated[
    float | None, option("MHZ", "Locked SM clock per GPU.", "--clock-limit", callback=positive)
]
ProfileOption = Annotated[
    PowerProfile | None,
    typer.Option("--power-profile", help="Workload power profile per GPU; see 'wattlaw devices'."),
]
FarOption = Annotated[
    bool, typer.Option("--far", help="Allow more than 64 times the GPUs that ran.")
]
PriorClocksOption = Annotated[
    Literal["default"] | None,
    typer.Option("--prior-clocks", help="'default' confirms that no clock is locked now."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse a store with damaged files (exit code 2).")
]
EnergyScopeOption = Annotated[
    Literal["gpu", "node", "all"] | None,
    option("SCOPE", "Energy of GPUs (gpu), of node meters (node), or the outermost (all)."),
]


def asks(names: Collection[str] = ()) -> Callable[[Function], Function]:
    """Give a command that takes ``**asked`` the options of a question; see ``question.asks``."""
    return question.asks(
        names, lambda key: Annotated[key.option | None, option(key.metavar, key.help)]
    )


def note_other_workloads(results: "StoreTables", workload: str | None = None) -> None:
    """Say for which workload of several the answer is, where the study determines it."""
    if workload is None and (others := results.other_workloads):
        asked = join_names(results.asked_workloads)
        text = f"the answer is for {asked}, of the study; also in the store: {join_names(others)}"
        advise = f"wattlaw advise {shlex.join(map(str, results.paths))} --workload NAME"
        print_note(f"{text}; {advise} answers for it")


def _list(name: str, text: str | None, expected: str, convert: Callable[[str], Item]) -> list[Item]:
    if text is None:
        return []
    items = [item.strip() for item in text.split(",")]
    values = []
    for item in items if all(items) else [text]:
        try:
            values.append(convert(item))
        except ValueError:
            raise BadInput(f"{name}: {quote(item)} is not valid; expected {expected}") from None
    return list(dict.fromkeys(values))


def parse_counts(name: str, text: str | None) -> list[int]:
    def count(item: str) -> int:
        # An integer with very many digits is refused before it is converted.
        value = int(item) if item.isascii() and item.isdigit() and len(item) < 20 else 0
        if not 1 <= value <= MAX_COUNT:
            raise ValueError(item)
        return value

    expected = f"integers from 1 to {MAX_COUNT:,} separated by commas, such as 1,2,4"
    return sorted(_list(name, text, expected, count))


def parse_layout(texts: Collection[str] | None) -> dict[str, list[Any]]:
    """Return the values of each name of ``--layout NAME=VALUE,...``."""
    values: dict[str, list[Any]] = {}
    for text in texts or ():
        name, is_given, items = text.partition("=")
        if not is_given or not items or name in values:
            expected = "NAME=VALUE,... once for each name, such as tp=1,2"
            raise BadInput(f"--layout: given {quote(text)}; allowed: {expected}")
        words = {"true": True, "false": False}
        values[name] = [
            int(item) if item.isascii() and item.isdigit() and len(item) < 20
            else words.get(item, item) for item in items.split(",")
        ]  # fmt: skip
    return values


def parse_limits(name: str, text: str | None) -> list[float | None]:
    def limit(item: str) -> float | None:
        value = None if item.lower() == "none" else float(item)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(item)
        return value

    expected = "numbers > 0 or none, separated by commas, such as 100,150,none"
    return _list(name, text, expected, limit)
