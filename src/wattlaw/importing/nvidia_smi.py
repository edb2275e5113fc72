"""Logs of ``nvidia-smi --query-gpu=timestamp,index,power.draw,... --format=csv -l 1``.

The names are those of ``nvidia-smi --help-query-gpu``. Times are local.
"""

from wattlaw.importing.smi_csv import Layout, SmiImporter

IMPORTER = SmiImporter(
    "nvidia-smi",
    "log of nvidia-smi --query-gpu=timestamp,... --format=csv",
    Layout(
        "nvidia-smi log",
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
            "output of nvidia-smi dmon, in whole watts and seconds": r"#.*\bgpu\b",
        },
    ),
)
