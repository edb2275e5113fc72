"""The decoded size of Parquet files, measured by a separate process before they are read.

A few kilobytes can decode to gigabytes: dictionaries, run lengths and shared prefixes repeat a
value in every row. The sizes that a file declares may be wrong, and a damaged file can crash the
library. The process decodes the columns once, in bounded memory, and keeps nothing.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from wattlaw.common.isolation import isolated_environment, isolated_python
from wattlaw.common.processes import confine, run_captured

#: Memory of the process while it decodes, in addition to the size of a file.
_MEMORY_BYTES = 2**29
#: Seconds to decode the files: at least, and for each byte.
_LEAST_S, _S_PER_BYTE = 60.0, 1e-6
#: How many times its size a file may have: packed, such as a ZIP file, or encoded, such as Parquet.
PACKED, ENCODED = 100, 1000


def unpacked_bytes(size: int, ratio: int) -> int:
    """Return how many bytes a file may unpack to: 100 MiB, or more by its size, up to 4 GiB."""
    return min(max(100 * 2**20, ratio * size), 4 * 2**30)


def check_decoded_size(
    paths: Sequence[Path],
    columns: Collection[str],
    most_bytes: int,
    *,
    batch_rows: int = 65_536,
    texts_once: bool = False,
) -> None:
    """Raise ``ValueError`` if columns of the files decode to more bytes together, or not at all.
    With ``texts_once`` a text that many rows of one batch share counts once."""
    settings = json.dumps([[*columns], most_bytes, batch_rows, texts_once])
    # Arrow's other allocators reserve more memory than they use.
    pool = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
    run_apart(__name__, [settings, *map(str, paths)], paths, pool)


def run_apart(
    module: str, arguments: Sequence[str], paths: Sequence[Path], environment: dict[str, str]
) -> None:
    """Run a module that reads files in a process of its own, as long as their sizes allow.
    ``ValueError`` has what the process says on stderr."""
    limit_s = _LEAST_S + _S_PER_BYTE * sum(path.stat().st_size for path in paths)
    line = isolated_python("-m", module, *arguments)
    try:
        done = run_captured(line, limit_s, isolated_environment() | environment)
    except subprocess.TimeoutExpired:
        raise ValueError(f"damaged: not decoded within {limit_s:.0f} s") from None
    if done.returncode < 0:
        raise ValueError(f"damaged: decoding crashed (signal {-done.returncode})")
    if done.returncode:
        raise ValueError(done.stderr.strip()[-500:])


def _measure(settings: str, *paths: str) -> None:
    import pyarrow.parquet as pq

    (columns, most_bytes, batch_rows, texts_once), total = json.loads(settings), 0
    confine(_MEMORY_BYTES + max(Path(path).stat().st_size for path in paths))
    for path in map(Path, paths):
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in {*columns}]
            cells = file.metadata.num_rows * len(names)
            leaves = [file.schema.column(place) for place in range(len(file.schema))]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        if 8 * cells > most_bytes:
            raise ValueError(_too_large(path.name, most_bytes))
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_rows, columns=names, use_threads=False):
                total += sum(c.nbytes if texts_once else decoded_bytes(c) for c in batch.columns)
                if total > most_bytes:
                    raise ValueError(_too_large(path.name, most_bytes))


def _too_large(name: str, most_bytes: int) -> str:
    return f"{name} decodes to more than {most_bytes:,} bytes"


def decoded_bytes(column: Any) -> int:
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
