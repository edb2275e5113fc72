"""The completeness of a data set in numbered files, such as ``train-00000-of-01024``."""

import re
from collections.abc import Sequence
from pathlib import Path

from wattlaw.common.errors import BadInput

_NUMBERED = re.compile(r"-(\d+)-of-(\d+)")


def check_all_there(files: Sequence[Path]) -> None:
    """Raise ``BadInput`` unless all files are the parts of one set, if any has a number: a missing
    shard would silently shorten the epochs."""
    numbered = [_NUMBERED.search(path.name) for path in files]
    parts = sorted((int(each[2]), int(each[1])) for each in numbered if each)
    total = parts[-1][0] if parts else 0
    if parts and (len(parts) < len(files) or parts != [(total, n) for n in range(total)]):
        missing = sorted({*range(total)} - {number for of, number in parts if of == total})
        which = f"shard {missing[0]} is missing" if missing else "some are of another set"
        raise BadInput(f"{files[0].parent}: {len(files)} shards of a set of {total}; {which}")
