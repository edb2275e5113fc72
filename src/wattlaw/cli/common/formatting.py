"""Tables and values as the commands print them."""

from rich.table import Table


def titled_table(title: str, *columns: str) -> Table:
    """Return an empty table with a title; long cells are folded."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def value_or_dash(value: float | None) -> str:
    """Return a number, or a dash where it is missing."""
    return "-" if value is None else f"{value:g}"


def range_or_dash(low: float | None, high: float | None) -> str:
    """Return ``100-400``, or a dash where a bound is missing."""
    return "-" if low is None or high is None else f"{low:g}-{high:g}"
