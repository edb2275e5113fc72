"""The decoded size of Parquet files, measured by a separate process before they are read.

A few kilobytes can decode to gigabytes: dictionaries, run lengths and shared prefixes repeat a
value in every row. The sizes that a file declares may be wrong, and a damaged file can crash the
library. The process decodes the columns once, in bounded memory, and keeps nothing.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattlaw.isolation import isolated_environment, isolated_python
from wattlaw.processes import confine, run_captured

#: Memory of the process while it decodes, in addition to the size of a file.
_MEMORY_BYTES = 2**29
#: Seconds to decode the files: at least, and for each byte.
_LEAST_S, _S_PER_BYTE = 60.0, 1e-6


@dataclass(frozen=True)
class Decoding:
    """How a file is read: these columns, so many rows at once.

    With ``texts_once`` a text that many rows of one batch share counts once.
    """

    columns: Collection[str]
    batch_rows: int = 65_536
    texts_once: bool = False


def check_decoded_size(paths: Sequence[Path], decoding: Decoding, most_bytes: int) -> None:
    """Raise ``ValueError`` if the files decode to more bytes together, or cannot be decoded.

    A column that a file lacks counts as empty.
    """
    settings = {**vars(decoding), "columns": [*decoding.columns], "most_bytes": most_bytes}
    line = isolated_python("-m", __name__, json.dumps(settings), *map(str, paths))
    limit_s = _LEAST_S + _S_PER_BYTE * sum(path.stat().st_size for path in paths)
    # Arrow's other allocators reserve more memory than they use.
    environment = isolated_environment() | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
    try:
        done = run_captured(line, limit_s, environment)
    except subprocess.TimeoutExpired:
        raise ValueError(f"damaged: not decoded within {limit_s:.0f} s") from None
    if done.returncode < 0:
        raise ValueError(f"damaged: decoding crashed (signal {-done.returncode})")
    if done.returncode:
        raise ValueError(done.stderr.strip()[-500:])


def _measure(settings: str, *paths: str) -> None:
    import pyarrow.parquet as pq

    given = json.loads(settings)
    most_bytes, total = given["most_bytes"], 0
    confine(_MEMORY_BYTES + max(Path(path).stat().st_size for path in paths))
    for path in map(Path, paths):
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in {*given["columns"]}]
            rows = file.metadata.num_rows
            leaves = [file.schema.column(place) for place in range(len(file.schema))]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        if 8 * rows * len(names) > most_bytes:
            raise ValueError(_too_large(path.name, most_bytes))
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(given["batch_rows"], columns=names, use_threads=False):
                columns = batch.columns
                texts_once = given["texts_once"]
                total += sum(c.nbytes if texts_once else decoded_bytes(c) for c in columns)
                if total > most_bytes:
                    raise ValueError(_too_large(path.name, most_bytes))


def _too_large(name: str, most_bytes: int) -> str:
    return f"{name} decodes to more than {most_bytes:,} bytes"


def decoded_bytes(column: Any) -> int:
    """Return the bytes of a column, of a dictionary those that it has without one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    sizes = pc.binary_length(column.dictionary).cast(pa.int64()).take(column.indices)
    return 8 * len(column) + (pc.sum(sizes).as_py() or 0)


if __name__ == "__main__":
    try:
        _measure(*sys.argv[1:])
    except MemoryError:
        sys.exit("its content needs more memory than a table may take")
    except Exception as error:
        sys.exit(" ".join(str(error).split())[:500] or type(error).__name__)
