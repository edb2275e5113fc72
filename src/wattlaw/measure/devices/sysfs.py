"""Files of the kernel below ``/sys``: small texts and numbers, and the sensors of hwmon.

Layout and units are those of the kernel's documentation (hwmon/sysfs-interface.rst): power in
microwatts, energy in microjoules, temperature in thousandths of a degree.
"""

import os
from collections.abc import Iterator
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
    """Return the text of a file; raises ``OSError``, or ``ValueError`` if it is not ASCII."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # at half the cost of Path.open
    try:
        return os.read(file, _MAX_BYTES).decode("ascii").strip()
    finally:
        os.close(file)


def optional_text(path: Path) -> str | None:
    try:
        return read_text(path) or None
    except (OSError, ValueError):
        return None


def read_number(path: Path) -> int:
    return parse_number(read_text(path))


def parse_number(text: str) -> int:
    """Raises ``ValueError`` if it is no number, or negative, or does not fit into 63 bits."""
    if not text.isdigit() or int(text) >= 2**63:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!a} is not a number")
    return int(text)


def read_optional(path: Path) -> int | None:
    try:
        return read_number(path)
    except (OSError, ValueError):
        return None


def hwmons(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each chip; one whose name cannot be read is left out. Drivers that
    use an old call of the kernel, such as ``acpi_power_meter``, have the name and the sensors in
    the chip's ``device``."""
    paths = [path for path in folder.glob("hwmon*") if path.name[len("hwmon") :].isdigit()]
    for path in sorted(paths, key=lambda path: int(path.name[len("hwmon") :])):
        for place in (path, path / "device"):
            if (name := optional_text(place / "name")) is not None:
                yield name, place
                break


def gpu_folders(vendor: str) -> Iterator[Path]:
    """Yield the device of each card of a vendor, by its PCI id; unreadable ones are left out."""
    for card in (root() / "class/drm").glob("card*"):
        is_card = card.name.removeprefix("card").isdigit()  # not a connector such as card0-DP-1
        if is_card and optional_text(card / "device/vendor") == vendor:
            yield card / "device"
