"""The live view of stores: a local web server that only reads, and ``wattlaw top``."""

from wattlaw.common.registry import Command

DASHBOARD = Command(
    "Show running studies in a browser, live.",
    "wattlaw_dashboard.dashboard_command",
    "dashboard",
    "Study",
)
TOP = Command(
    "Show running studies in the terminal, live.", "wattlaw_dashboard.top", "top", "Study"
)
