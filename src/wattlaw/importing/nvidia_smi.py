"""Logs of ``nvidia-smi --query-gpu=timestamp,index,power.draw,... --format=csv -l 1``.

The names are those of ``nvidia-smi --help-query-gpu``. Times are local. ``nvidia-smi dmon -o DT``
writes a log too, with whole watts and seconds.
"""

import re
from collections.abc import Iterator

from wattlaw.importing.reading import OTHER_CELLS, Line, Source
from wattlaw.importing.smi_csv import SmiImporter

#: Fields of a log by columns of ``dmon``.
_DMON = {
    "gpu": "index", "pwr": "power.draw", "sm": "utilization.gpu", "mem": "utilization.memory",
    "gtemp": "temperature.gpu", "mclk": "clocks.mem", "pclk": "clocks.sm",
}  # fmt: skip


class NvidiaSmiImporter(SmiImporter):
    """Logs of ``--query-gpu``, and of ``dmon`` where it has dates and times."""

    def lines(self, source: Source) -> Iterator[Line]:
        first = re.match(r"#[^\n]*", source.head().removeprefix("\ufeff").lstrip())
        columns = first[0].replace(",", " ").lstrip("# ").lower().split() if first else []
        is_dmon = {"date", "time", "gpu", "pwr"} <= {*columns}
        return _dmon(source) if is_dmon else super().lines(source)


def _dmon(source: Source) -> Iterator[Line]:
    """Yield the rows of ``dmon -o DT``; a header has a line of names and one of units."""
    account, names = source.account, [""]
    header: tuple[str, ...] = ()
    for number, line in source.lines(only_complete=True):
        cells = line.replace(",", " ").lstrip("# ").split()
        if line.startswith("#"):
            account.header(number)
            if "gpu" in cells:
                names = [_DMON.get(name, name) for name in cells]
                names[:2] = ["timestamp", ""] if names[:2] == ["Date", "Time"] else names[:2]
                header = tuple(names)
            elif len(cells) == len(names):
                named = zip(names[2:], cells[2:], strict=True)
                header = (*names[:2], *(f"{name} [{unit}]" for name, unit in named))
        elif len(cells) != len(header) or header[0] != "timestamp":
            account.leave_out(OTHER_CELLS, number)
        else:
            day, time, *values = cells
            day = re.sub("[^0-9]", "", day)
            moment = f"{day[:4]}-{day[4:6]}-{day[6:]} {time}"
            values = ["N/A" if value == "-" else value for value in values]
            yield Line(number, header, [moment, "", *values])


IMPORTER = NvidiaSmiImporter(
    "nvidia-smi",
    "log of nvidia-smi --query-gpu=timestamp,... --format=csv",
    {
        "power_w": ("power.draw.instant", "power.draw", "power.draw.average"),
        "power_average_w": ("power.draw.average",),
        "power_limit_w": ("enforced.power.limit", "power.limit"),
        "sm_util": ("utilization.gpu",),
        "mem_util": ("utilization.memory",),
        "sm_clock_mhz": ("clocks.current.sm", "clocks.sm"),
        "mem_clock_mhz": ("clocks.current.memory", "clocks.mem"),
        "temperature_c": ("temperature.gpu",),
    },
    ids=("uuid", "gpu_uuid", "index", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial"),
    remedy="log with: nvidia-smi --query-gpu=timestamp,index,power.draw,utilization.gpu "
    "--format=csv -l 1 (or power.draw.instant, where power.draw is N/A)",
    names=("name", "gpu_name"),
    max_limits=("power.max_limit",),
    instant=("power.draw.instant",),
    others={
        "the log has no header (noheader); write the names of its columns as its first line, "
        "such as timestamp, index, power.draw [W]": (
            r"(?:[^\n,;\t]*[,;\t] *){0,20}\d{4}/\d\d/\d\d \d\d:\d\d:\d\d[.,]\d{3}\s*[,;\t\r\n]"
        ),
        "output of nvidia-smi dmon without dates or power; its options -o DT -s pu add them": (
            r"#.*\bgpu\b"
        ),
    },
)
