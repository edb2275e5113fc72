"""A user's own command as what a run trains: its words, its window, why it failed."""

import re
from pathlib import Path

from wattlaw import machine
from wattlaw.files import read_end, write_text
from wattlaw.store.record import Facts, RunRecord
from wattlaw.study.rules import substitute
from wattlaw.telemetry.windows import open_windows, windows_path, write_window
from wattlaw.training.environment import host_name

_PACKAGES = ("wattlaw", "torch", "numpy", "lightning", "transformers", "nvidia-nccl-cu13")
#: The last line of a traceback, and what Python and argparse say without one.
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?"
    r"|\S+: error: .*|.*: can't open file .*)$",
    re.MULTILINE,
)
_LONGEST = 300


def command_arguments(record: RunRecord) -> list[str]:
    """Return a run's command with the values of its setting filled in."""
    spec = record.spec
    values: dict[str, object] = {
        **spec.setting.model_dump(),
        "epochs": spec.measure.epochs,
        "warmup_epochs": spec.measure.warmup_epochs,
        "seed": record.seed,
        "repeat": spec.repeat,
    }
    return [substitute(word, values) for word in spec.workload.command or ()]


def bring_windows(live: Path, start_ns: int, duration_s: float) -> None:
    """Write what the agent knows: one window of the whole command if it has marked none itself."""
    host = host_name()
    if not windows_path(live, host).exists():
        with open_windows(live, host) as windows:
            write_window(
                windows,
                host,
                epoch=0,
                phase="train",
                warmup=False,
                start_ns=start_ns,
                duration_s=duration_s,
            )
    facts = Facts(hosts=(host,), hardware=machine.hardware(), software=machine.software(_PACKAGES))
    write_text(live / f"facts.{host}.json", facts.model_dump_json())


def first_error(log: Path, attempt: int) -> str | None:
    """Return the line by which a Python program told an error first, in an attempt's log."""
    try:
        text = read_end(log)
    except OSError:
        return None
    told = _ERROR.search(text.rpartition(f"== attempt {attempt},")[2])
    return " ".join(told[1].split())[:_LONGEST] if told else None
