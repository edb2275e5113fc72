"""Reads study files."""

from pathlib import Path

from wattlaw.study.document import read_document
from wattlaw.study.model import Study


def read_study(path: Path) -> Study:
    """Read and validate a study file.

    Raises
    ------
    BadInput
        One line: ``file:line: key: given ...; allowed: ...``.
    """
    return read_document(path, Study, "study file")
