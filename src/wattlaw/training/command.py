"""A user's own command as the workload of a run: its arguments, its window, its first error."""

import re
from pathlib import Path

from wattlaw import machine
from wattlaw.files import read_end, write_text
from wattlaw.store.live import open_windows, windows_path, write_window
from wattlaw.store.record import Facts, RunRecord
from wattlaw.study.model import substitute
from wattlaw.text import collapse_whitespace
from wattlaw.training.environment import host_name

_PACKAGES = ("wattlaw", "torch", "numpy", "lightning", "transformers", "nvidia-nccl-cu13")
#: The last line of a traceback, and error messages of Python and argparse.
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?"
    r"|\S+: error: .*|.*: can't open file .*)$",
    re.MULTILINE,
)
_LONGEST = 300


def command_arguments(record: RunRecord) -> list[str]:
    """Return the command of a run with the values of its setting inserted."""
    spec = record.spec
    values: dict[str, object] = {
        **spec.setting.model_dump(),
        "epochs": spec.measure.epochs,
        "warmup_epochs": spec.measure.warmup_epochs,
        "seed": record.seed,
        "repeat": spec.repeat,
    }
    return [substitute(word, values) for word in spec.workload.command or ()]


def write_window_and_facts(live: Path, start_ns: int, duration_s: float) -> None:
    """Write the host's facts and, unless the command has marked windows, one window for it all."""
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
    """Return the first error message of a Python program in the log of an attempt."""
    try:
        text = read_end(log)
    except OSError:
        return None
    error = _ERROR.search(text.rpartition(f"== attempt {attempt},")[2])
    return collapse_whitespace(error[1])[:_LONGEST] if error else None
