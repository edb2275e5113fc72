"""Delimited text of other programs: its encoding, and the cells of a line."""

import codecs
import csv

#: Separators of the cells of a line, the usual one first.
DELIMITERS = (",", ";", "\t", "|")
#: The lines among which a header is looked for.
HEADER_LINES = 50
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(head: bytes) -> str:
    """Return the encoding of a text that begins with ``head``: UTF-16 has a mark, else UTF-8."""
    return next((name for mark, name in _BYTE_ORDER_MARKS if head.startswith(mark)), "utf-8")


def split_cells(line: str, delimiter: str = ",") -> list[str]:
    """Return the cells of a line of CSV, stripped. Quotes are no part of ``|`` tables."""
    if delimiter == "|":
        return [cell.strip() for cell in line.split("|")]
    try:
        (cells,) = csv.reader([line.replace("\0", "")], delimiter=delimiter, skipinitialspace=True)
    except (csv.Error, ValueError):
        cells = line.split(delimiter)
    return [cell.strip() for cell in cells]
