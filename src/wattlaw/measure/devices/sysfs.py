"""Files of the kernel below ``/sys``: small texts and numbers, and the sensors of hwmon.

Layout and units are those of the kernel's documentation (hwmon/sysfs-interface.rst): power in
microwatts, energy in microjoules, temperature in thousandths of a degree.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wattlaw.common.errors import BadInput

#: Another root than ``/sys``, for containers, tests, and trees copied from another machine.
ROOT_VARIABLE = "WATTLAW_SYSFS_ROOT"
_ROOT = "/sys"
#: Bytes to read of a file. Names and numbers of the kernel are shorter.
_MAX_BYTES = 4096
_SHOWN_CHARACTERS = 20


def root() -> Path:
    return Path(os.environ.get(ROOT_VARIABLE) or _ROOT)


def check_root() -> None:
    """Raise ``BadInput`` if the variable is set and its value is not a folder."""
    if is_copy() and not root().is_dir():
        raise BadInput(
            f"{ROOT_VARIABLE}: {root()} is not a folder; set it to where the host's /sys is "
            "mounted, or unset it"
        )


def is_copy() -> bool:
    return root() != Path(_ROOT)


def read_text(path: Path) -> str:
    """Return the text of a file without the spaces around it.

    Raises ``OSError`` if it cannot be read, and ``ValueError`` if it is not ASCII text.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # at half the cost of Path.open
    try:
        return os.read(file, _MAX_BYTES).decode("ascii").strip()
    finally:
        os.close(file)


def optional_text(path: Path) -> str | None:
    """Return the text of a file, None if it is empty or cannot be read."""
    try:
        return read_text(path) or None
    except (OSError, ValueError):
        return None


def read_number(path: Path) -> int:
    """Return the number in a file.

    Raises ``OSError`` if it cannot be read, and ``ValueError`` if there is no number, it is
    negative, or it does not fit into 63 bits.
    """
    return parse_number(read_text(path))


def parse_number(text: str) -> int:
    """Return the number in the text of a file; raises ``ValueError`` as ``read_number``."""
    if not text.isdigit() or int(text) >= 2**63:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!a} is not a number")
    return int(text)


def read_optional(path: Path) -> int | None:
    """Return the number in a file, None if there is none that can be read."""
    try:
        return read_number(path)
    except (OSError, ValueError):
        return None


class OpenFile:
    """A file that is read often and stays open, at a third of the cost of opening it again.

    Its path is opened again if reading fails, or if it has been removed or replaced. The kernel
    refuses to read a removed file of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._content = b""

    def read(self) -> str:
        """Return the text of the file as ``read_text``, with the same errors."""
        content = None
        if self._file is not None:
            try:
                content = os.pread(self._file, _MAX_BYTES, 0)
                if content == self._content and not os.fstat(self._file).st_nlink:
                    content = None
            except OSError:
                content = None
        if content is None:
            self.close()
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            content = os.read(self._file, _MAX_BYTES)
        self._content = content
        return content.decode("ascii").strip()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True)
class Hwmon:
    """One chip with sensors: its folder, and the name that its driver gives it."""

    path: Path
    name: str

    def label(self, sensor: str) -> str | None:
        """Return the label of a sensor such as ``power1``, None if it has none."""
        return optional_text(self.path / f"{sensor}_label")


def hwmons(folder: Path) -> Iterator[Hwmon]:
    """Yield the chips of a folder such as ``/sys/class/hwmon`` or ``DEVICE/hwmon``, in order.

    A chip whose name cannot be read is left out. Drivers that use an old call of the kernel, such
    as ``acpi_power_meter``, have the name and the sensors in the chip's ``device``.
    """
    paths = [path for path in folder.glob("hwmon*") if path.name[len("hwmon") :].isdigit()]
    for path in sorted(paths, key=lambda path: int(path.name[len("hwmon") :])):
        for place in (path, path / "device"):
            if (name := optional_text(place / "name")) is not None:
                yield Hwmon(place, name)
                break
