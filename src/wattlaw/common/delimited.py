"""Delimited text of other programs: its encoding, and the cells of a line."""

import codecs
import csv

#: Separators of the cells of a line, the usual one first.
DELIMITERS = (",", ";", "\t", "|")
#: The lines among which a header is looked for.
HEADER_LINES = 50
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(head: bytes) -> str:
    """Return the encoding of a text that begins with ``head``: UTF-8, UTF-16 or UTF-32."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return encoding
    # ASCII characters in UTF-16 without a mark: every second byte is 0.
    zeros = [head[place::2].count(0) for place in (0, 1)]
    if len(head) >= 8 and max(zeros) > 0.4 * len(head) and not min(zeros):
        return "utf-16-be" if zeros[0] else "utf-16-le"
    return "utf-8"


def split_cells(line: str, delimiter: str = ",") -> list[str]:
    """Return the cells of a line of CSV, stripped. Quotes are no part of ``|`` tables."""
    if delimiter == "|":
        return [cell.strip() for cell in line.split("|")]
    try:
        (cells,) = csv.reader([line.replace("\0", "")], delimiter=delimiter, skipinitialspace=True)
    except (csv.Error, ValueError):
        cells = line.split(delimiter)
    return [cell.strip() for cell in cells]
