"""Power of the node by an ACPI power meter of the kernel, or by its management controller (DCMI).

A reading of either can take seconds. A thread makes it, and the next call collects the result. The
controller is queried with ``ipmitool dcmi power reading`` (IPMI DCMI specification, "Get Power
Reading"), which needs root or a rule for sudo.
"""

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.common.text import collapse_whitespace, quote, shorten
from wattlaw.measure.devices import cray, sysfs
from wattlaw.measure.devices.file_meter import reading_error
from wattlaw.measure.devices.grace import permit, power_meters
from wattlaw.measure.devices.meter import Device, Facts, Meter, Sample, Target
from wattlaw.measure.devices.node_sharing import shares_node
from wattlaw.store.streams import Kind

_ACPI_PERIOD_S, _DCMI_PERIOD_S = 1.0, 5.0
#: The longest first reading, and the longest later one.
_OPEN_TIMEOUT_S, _TIMEOUT_S = 3.0, 20.0
#: How long the last reading of a run is waited for.
_LAST_S = 1.0
_MAX_FAILURES = 5
_ARGUMENTS = ("dcmi", "power", "reading")
_NOT_PERMITTED = (
    "requires root; if sudo allows 'ipmitool dcmi power reading' (see docs/devices.md), set "
    "WATTLAW_DCMI=sudo"
)
#: Users opt in to sudo, because sudo reports a refused command to administrators.
_VARIABLE = "WATTLAW_DCMI"
_POWER = re.compile(r"Instantaneous power reading:\s*([0-9]{1,6}) Watts")
_STATE = re.compile(r"Power reading state is:\s*(\w+)")
_TIME = re.compile(r"IPMI timestamp:[ \t]*(.*?)[ \t]*(?:Sampling period|\n)")
#: Times of controllers whose clock is not set.
_UNSET = ("1970", "/70 ")
_CONTAINS: tuple[Kind, ...] = ("module", "gpu", "cpu", "dram")


@dataclass
class _Source:
    """A device, how often and how to read its power, and how to stop a reading."""

    device: Device
    period_s: float
    read: Callable[[], float | None]
    stop: Callable[[], None] = lambda: None


class _Reading(threading.Thread):
    """One reading in the background: its time, and the power or the error."""

    def __init__(self, read: Callable[[], float | None]) -> None:
        super().__init__(daemon=True)  # one that hangs does not keep the process alive
        self._read = read
        self.power_w: float | None = None  # None: no new value
        self.error: NotAvailable | None = None
        self.started_s, self.t_ns = time.monotonic(), 0
        self.start()

    def run(self) -> None:
        try:
            self.power_w = self._read()
        except NotAvailable as error:
            self.error = error
        self.t_ns = time.time_ns()


class NodePowerMeter(Meter):
    def __init__(self, source: _Source, period_s: float, first: _Reading) -> None:
        self._source, self.period_s = source, max(period_s, source.period_s)
        self._reading: _Reading | None = first
        self._failures = 0
        self._problem: str | None = None

    @classmethod
    def open(cls, target: Target) -> Self:
        if sysfs.optional_text(cray.counters() / "energy"):
            raise NotAvailable("not used: the node's energy is read from pm_counters")
        source = _acpi() or _dcmi()
        first = _Reading(source.read)
        first.join(_OPEN_TIMEOUT_S)
        error = first.error
        if first.is_alive():
            source.stop()
            error = NotAvailable(f"no answer in {_OPEN_TIMEOUT_S:g} s")
        if error is not None:
            raise type(error)(f"{source.device.name}: {error}")
        facts = {**source.device.facts, "call_s": time.monotonic() - first.started_s}
        source.device = replace(source.device, facts=facts)
        return cls(source, target.period_s, first)

    def devices(self) -> list[Device]:
        return [self._source.device]

    def read(self, *, last: bool = False) -> list[Sample]:
        """Return the reading that has ended, and start the next one; this does not wait for it.

        With ``last`` it waits up to a second.
        """
        if self._failures >= _MAX_FAILURES:
            return []
        reading = self._reading = self._reading or _Reading(self._source.read)
        if last:
            reading.join(_LAST_S)
        device = self._source.device
        if reading.is_alive():
            if time.monotonic() - reading.started_s > _TIMEOUT_S:
                self._problem = f"{device.id}: no answer for {_TIMEOUT_S:g} s"
            return []
        self._reading = None if last else _Reading(self._source.read)
        if reading.error is not None:
            self._failures += 1
            self._problem = f"{device.id}: {reading.error}"
            return []
        self._failures, self._problem = 0, None
        if reading.power_w is None:
            return []
        sample = Sample(device.id, "node", reading.t_ns, power_source="measured")
        return [sample._replace(power_w=reading.power_w)]

    def problems(self) -> list[str]:
        return [self._problem] if self._problem is not None else []

    def close(self) -> None:
        if self._reading is not None and self._reading.is_alive():
            self._source.stop()


def _acpi() -> _Source | None:
    """Return the ACPI power meter, None if there is none, or several of unknown scopes."""
    meters = power_meters()
    if len(meters) != 1 or meters[0].channel is not None:
        return None
    scope = "node by its ACPI power meter, as the firmware defines it"
    facts = {"scope": scope, **meters[0].facts}
    device = Device("node-acpi", "node", "node by ACPI", facts, _CONTAINS)
    file = meters[0].source(device)

    def read() -> float:
        try:
            return file.value()
        except (OSError, ValueError) as error:
            raise reading_error(file.path, error, permit(file.path)) from None

    return _Source(device, _ACPI_PERIOD_S, read)


def _dcmi() -> _Source:
    """Return the management controller; raises ``NotAvailable`` if it cannot be queried."""
    if not any((sysfs.root() / "class/ipmi").glob("ipmi*")):
        raise NotAvailable(
            "no ACPI power meter, and no management controller "
            "(kernel drivers ipmi_si and ipmi_devintf)"
        )
    program = _which("ipmitool")
    if program is None:
        raise NotAvailable("ipmitool not found; install it to read the node's power by DCMI")
    line = [program, *_ARGUMENTS]
    if os.geteuid() != 0 and not os.access("/dev/ipmi0", os.W_OK):
        sudo = _which("sudo") if os.environ.get(_VARIABLE) == "sudo" else None
        if sudo is None:
            raise NotPermitted(f"node by DCMI: {_NOT_PERMITTED}")
        line = [sudo, "-n", *line]
    dcmi = _Dcmi(line)
    facts: Facts = {
        "scope": "node by its management controller, usually at the power supplies",
        "power": "dcmi", "resolution_s": _DCMI_PERIOD_S, "complements": True,
        "is_shared": shares_node(),
    }  # fmt: skip
    device = Device("node-dcmi", "node", "node by DCMI", facts, _CONTAINS)
    return _Source(device, _DCMI_PERIOD_S, dcmi.read, dcmi.stop)


class _Dcmi:
    def __init__(self, line: list[str]) -> None:
        self._line = line
        self._process: subprocess.Popen[str] | None = None
        self._time: str | None = None

    def read(self) -> float | None:
        """Return the power; None if the controller has not measured it since the last reading.

        Raises ``NotPermitted`` or ``NotAvailable``, with what an administrator can check.
        """
        try:
            power_w, read_at = parse_dcmi(self._output())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            command = " ".join(self._line)
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            if isinstance(error, subprocess.TimeoutExpired):
                reason = f"timed out after {error.timeout:g} s"
            raise NotAvailable(
                f"'{command}': {reason}; ask an administrator whether the management controller of "
                "this node can measure power"
            ) from None
        is_new, self._time = read_at is None or read_at != self._time, read_at
        return power_w if is_new else None

    def _output(self) -> str:
        with subprocess.Popen(
            self._line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace", cwd="/", env={"LC_ALL": "C"},
        ) as process:  # fmt: skip
            self._process = process
            try:
                output, errors = process.communicate(timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.stop()
                raise
        if process.returncode:
            text = collapse_whitespace(f"{errors} {output}")
            if self._line[1] == "-n" or "permi" in text.lower():
                raise NotPermitted(_NOT_PERMITTED)
            raise NotAvailable(f"ipmitool: {shorten(text) or f'code {process.returncode}'}")
        return output

    def stop(self) -> None:
        """Kill ipmitool; one that runs by sudo ends by itself."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()


def _which(program: str) -> str | None:
    """Return the path of a program, from absolute folders of PATH and those of administrators."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/sbin"]
    return shutil.which(program, path=os.pathsep.join(f for f in folders if f.startswith("/")))


def parse_dcmi(text: str) -> tuple[float, str | None]:
    """Return a power and its time by the controller's clock, None if that is not set.

    Raises ``ValueError`` if there is no reading, or its power is 0, which some controllers print
    that measure nothing, or the measurement is not active.
    """
    powers, states = _POWER.findall(text), _STATE.findall(text)
    if len(powers) != 1 or len(states) != 1:
        raise ValueError(f"no power reading in {quote(collapse_whitespace(text))}")
    if states[0] != "activated":
        raise ValueError("the management controller's power reading is not activated")
    if not int(powers[0]):
        raise ValueError("the management controller reports 0 W")
    times = _TIME.findall(text)
    is_set = len(times) == 1 and not any(year in times[0] for year in _UNSET)
    return float(powers[0]), times[0] if is_set else None
