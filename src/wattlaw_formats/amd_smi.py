"""Logs of ``amd-smi metric --csv --watch 1`` and ``amd-smi monitor --csv --watch 1``.

Power is in W, energy in J, activity in percent, clocks in MHz. ``--watch`` adds the time.
"""

from wattlaw.importing.smi_csv import SmiImporter

IMPORTER = SmiImporter(
    "amd-smi",
    "log of amd-smi metric or monitor, with --csv --watch",
    {
        "power_w": (
            "socket_power", "current_socket_power", "average_socket_power", "power_usage",
        ),
        "energy_j": ("total_energy_consumption",),
        "power_limit_w": ("power_cap", "socket_power_limit"),
        "sm_util": ("gfx_activity", "gfx_util", "gfx"),
        "mem_util": ("umc_activity", "mem_util"),
        "sm_clock_mhz": ("gfx_0_clk", "gfx_clk", "gfx_clock"),
        "mem_clock_mhz": ("mem_0_clk", "mem_clock"),
        "temperature_c": ("hotspot", "hotspot_temperature"),
    },
    ids=("gpu",),
    remedy="log with: amd-smi metric --power --energy --usage --csv --watch 1",
)  # fmt: skip
